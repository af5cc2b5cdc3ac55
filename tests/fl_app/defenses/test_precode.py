"""PRECODE: the extended model, the loss by its formula, and an attack that still runs on it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from attacks.optimisation import inverting_gradients
from fl_app.defenses import precode, protect, soteria
from fl_app.models import ModelSpec, build_model
from fl_app.training import Batch, Step, backpropagate, cross_entropy
from fl_app.types import Observation

SPEC = ModelSpec("fl_app.models.lenet_zhu", {"num_classes": 4, "in_shape": (3, 8, 8)})
STEP = Step(torch.Generator(), expected=3, rate=1.0, per_round=1)


def model_for(defense, spec: ModelSpec = SPEC) -> nn.Module:
    return build_model(defense.model(spec))


@pytest.fixture
def batch() -> Batch:
    inputs = torch.rand(3, 3, 8, 8)
    return Batch(inputs, torch.tensor([0, 3, 1]), inputs, inputs)


def drawn(loss, model: nn.Module, batch: Batch) -> Tensor:
    torch.manual_seed(5)
    return loss(model, batch)


def test_the_spec_says_what_is_trained_instead():
    extended = precode(size=7).model(SPEC)
    assert extended == ModelSpec(SPEC.target, SPEC.settings, {"bottleneck": {"size": 7}})
    assert extended.hash != SPEC.hash
    assert precode().model(SPEC).extensions == {"bottleneck": {"size": 256}}


def test_the_loss_is_cross_entropy_plus_beta_times_the_divergence(batch):
    model = model_for(precode(size=6))
    body = nn.Sequential(*list(model)[:-1])
    mean, spread = model.output.bottleneck.encoder(body(batch.inputs)).chunk(2, dim=1)
    normal = Normal(torch.zeros_like(mean), torch.ones_like(mean))
    divergence = kl_divergence(Normal(mean, F.softplus(spread)), normal).sum(1).mean()
    expected = drawn(cross_entropy, model, batch) + 0.3 * divergence
    torch.testing.assert_close(drawn(precode(size=6, beta=0.3).rules.loss, model, batch), expected)


def test_without_beta_it_is_the_cross_entropy(batch):
    model = model_for(precode(size=6))
    loss = precode(size=6, beta=0).rules.loss
    assert torch.equal(drawn(loss, model, batch), drawn(cross_entropy, model, batch))


@pytest.mark.parametrize("training", [True, False])
def test_every_parameter_gets_a_gradient_and_no_two_draws_the_same(batch, training):
    defense = precode(size=6)
    model = model_for(defense).train(training)
    first, second = (backpropagate(model, batch, defense.rules.loss, STEP)[1] for _ in range(2))
    for name, gradient in first.items():
        assert gradient.abs().sum() > 0, name
        assert not torch.equal(gradient, second[name]), name
    for half in first["output.bottleneck.encoder.weight"].chunk(2):
        assert half.abs().sum() > 0


def test_the_loss_leaves_nothing_on_the_model(batch):
    model = model_for(precode(size=6))
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    precode(size=6).rules.loss(model, batch).backward()
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before
    assert not any(module._forward_hooks for module in model.modules())
    copy.deepcopy(model)


def test_a_model_without_a_bottleneck_is_refused_before_and_in_training(batch):
    defense, model = precode(), build_model(SPEC)
    with pytest.raises(ValueError, match="precode: the model must have one bottleneck, got 0"):
        defense.check(model)
    with pytest.raises(ValueError, match="precode: the model must have one bottleneck, got 0"):
        defense.rules.loss(model, batch)
    defense.check(model_for(defense))


@pytest.mark.parametrize("restarts", [1, 2])
def test_gradient_inversion_runs_on_such_a_model(batch, restarts):
    defense = precode(size=6)
    model = model_for(defense)
    _, update = backpropagate(model, batch, defense.rules.loss, STEP)
    obs = Observation(
        model=model,
        update=update,
        batch_size=3,
        num_classes=4,
        input_shape=(3, 8, 8),
        mean=[0.0] * 3,
        std=[1.0] * 3,
        labels=batch.labels,
        training=True,
    )
    result = inverting_gradients(steps=3, restarts=restarts)(obs)
    assert result.images.shape == (3, 3, 8, 8)
    assert math.isfinite(result.objective)
    assert not any("cannot be batched" in note for note in result.notes)


def test_soteria_works_beside_it(batch):
    both = protect(precode=precode(size=6), soteria=soteria(rate=0.5))
    model = model_for(both)
    both.check(model)
    _, update = both.rules.differentiate(model, batch, both.rules.loss, STEP)
    assert int((update["output.linear.weight"] == 0).all(dim=0).sum()) == 24


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": 0}, "precode: size must be a positive integer, got 0"),
        ({"size": 2.5}, "precode: size must be a positive integer, got 2.5"),
        ({"beta": -1}, "precode: beta must be a finite number of at least 0, got -1"),
        ({"beta": math.inf}, "precode: beta"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        precode(**given)
