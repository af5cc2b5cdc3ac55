"""Property inference: the classifier against closed forms, and updates that tell a property or nothing."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks.attributes import infer_property
from attacks.attributes.ridge import fit_ridge, unit
from fl_app.types import Observation, PropertyQuestion


def test_left_out_predictions_are_those_of_fits_without_them():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(24, 60, generator=generator, dtype=torch.float64)
    answers = torch.arange(24) % 2 == 0
    rows[answers] += 0.4 * torch.randn(60, generator=generator, dtype=torch.float64)
    fitted = fit_ridge(rows, answers)
    assert float(((fitted.left_out > 0) == answers).double().mean()) > 0.6
    # a refit without one example predicts it nearly as the closed form says
    for i in range(0, 24, 6):
        kept = torch.arange(24) != i
        again = fit_ridge(rows[kept], answers[kept])
        assert abs(again(rows[i]) - float(fitted.left_out[i])) < 0.35


def test_a_fit_of_clear_groups_answers_new_rows():
    generator = torch.Generator().manual_seed(1)
    direction = torch.randn(200, generator=generator)
    answers = torch.rand(40, generator=generator) < 0.5
    rows = torch.randn(40, 200, generator=generator) + torch.where(answers, 1.0, -1.0)[:, None] * direction
    model = fit_ridge(rows, answers)
    assert model(100 * (direction + torch.randn(200, generator=generator))) > 0
    assert model(0.01 * (-direction + torch.randn(200, generator=generator))) < 0
    assert unit(rows[0]).norm() == pytest.approx(1.0)


def gradient(model, inputs, labels):
    loss = F.cross_entropy(model(inputs), labels)
    found = torch.autograd.grad(loss, list(model.parameters()))
    return {name: g for (name, _), g in zip(model.named_parameters(), found, strict=True)}


def test_a_hidden_attribute_of_a_batch_is_told_from_its_gradient_and_noise_tells_nothing():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
    generator = torch.Generator().manual_seed(2)

    def batch(has):
        inputs = torch.randn(8, 12, generator=generator)
        inputs[:, 5] += 1.5 if has else -1.5  # not what the model is asked for
        return gradient(model, inputs, torch.randint(3, (8,), generator=generator))

    answers = torch.arange(60) % 2 == 0
    examples = [batch(bool(has)) for has in answers]
    attack = infer_property(examples=60)
    right = 0
    for number in range(30):
        update = batch(number % 2 == 0)
        guess = attack(PropertyQuestion(Observation(model, update), examples, answers))
        right += (guess.score > 0) == (number % 2 == 0)
    assert right >= 26
    assert guess.expected > 0.8
    noise = [{n: torch.randn(t.shape, generator=generator) for n, t in update.items()} for update in examples]
    blind = attack(PropertyQuestion(Observation(model, noise[0]), noise, answers))
    assert 0.2 < blind.expected < 0.8


@pytest.mark.parametrize("bad", [{"holds": "all"}, {"examples": 2}])
def test_settings_that_ask_nothing_are_refused(bad):
    with pytest.raises(ValueError, match="property"):
        infer_property(**bad)


def test_examples_of_one_kind_are_refused():
    with pytest.raises(ValueError, match="with and without"):
        fit_ridge(torch.randn(4, 5), torch.ones(4, dtype=torch.bool))
    assert np.isfinite(fit_ridge(torch.zeros(4, 5), torch.arange(4) < 2)(torch.zeros(5)))
