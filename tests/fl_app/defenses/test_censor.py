"""CENSOR and concealed samples: orthogonal in every layer, unlike in pixels, alike in gradients."""

import pytest
import torch

from fl_app.defenses import censor, concealed
from fl_app.models import lenet_zhu
from fl_app.seeding import generator_for
from fl_app.training import Batch, Step, backpropagate, parameters
from fl_app.training.rules import cross_entropy


@pytest.fixture
def task():
    torch.manual_seed(0)
    model = lenet_zhu(10, (3, 32, 32))
    pixels = torch.rand(2, 3, 32, 32)
    batch = Batch(pixels, torch.tensor([3, 5]), pixels, pixels)
    return model, batch, Step(generator_for(0, 1, 0, "rules"), expected=2, rate=1.0, per_round=1)


def test_a_censored_update_is_orthogonal_and_as_long_in_every_layer(task):
    model, batch, step = task
    before = {name: p.detach().clone() for name, p in parameters(model).items()}
    _, gradient = backpropagate(model, batch, cross_entropy, step)
    _, sent = censor(trials=3).rules.differentiate(model, batch, cross_entropy, step)
    for name, g in gradient.items():
        cosine = float((g * sent[name]).sum() / (g.norm() * sent[name].norm()))
        assert abs(cosine) < 1e-4
        torch.testing.assert_close(sent[name].norm(), g.norm(), rtol=1e-4, atol=0)
        torch.testing.assert_close(parameters(model)[name].detach(), before[name], rtol=0, atol=1e-6)


def test_more_trials_lower_the_loss_after_the_step(task):
    model, batch, _ = task

    def after(trials):
        step = Step(generator_for(0, 1, 0, "rules"), expected=2, rate=1.0, per_round=1)
        _, sent = censor(trials=trials, probe=5.0).rules.differentiate(model, batch, cross_entropy, step)
        moved = lenet_zhu(10, (3, 32, 32))
        moved.load_state_dict({name: p - 5.0 * sent[name] for name, p in model.state_dict().items()})
        return float(cross_entropy(moved, batch).detach())

    assert after(20) <= after(1)


def test_concealed_images_turn_the_gradient_little_and_hide_in_it(task):
    model, batch, step = task
    _, own = backpropagate(model, batch, cross_entropy, step)
    seen = []

    def watched(model, batch):
        seen.append(batch.inputs.detach())
        return cross_entropy(model, batch)

    _, mixed = concealed(steps=30).rules.differentiate(model, batch, watched, step)
    flat = [torch.cat([g.reshape(-1) for g in update.values()]) for update in (own, mixed)]
    cosine = float(torch.nn.functional.cosine_similarity(*flat, dim=0))
    assert 0.5 < cosine < 0.9999
    apart = (seen[-1] - batch.inputs).flatten(1).square().mean(1).sqrt()
    assert (apart > 0.9).all()


def test_without_concealed_images_the_gradient_is_the_plain_one(task):
    model, batch, step = task
    _, own = backpropagate(model, batch, cross_entropy, step)
    _, sent = concealed(share=0.0).rules.differentiate(model, batch, cross_entropy, step)
    torch.testing.assert_close(sent, own, rtol=0, atol=0)


@pytest.mark.parametrize(
    "bad", [lambda: censor(trials=0), lambda: censor(probe=0), lambda: concealed(share=1.0)]
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ValueError, match=r"censor|concealed"):
        bad()
