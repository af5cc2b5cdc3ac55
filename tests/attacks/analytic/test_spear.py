"""SPEAR: all inputs of a batch behind a ReLU to 1e-6, and refusal where a premise fails."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks.analytic.spear import spear
from attacks.metrics import match
from fl_app.transforms import add_gaussian, keep_topk
from fl_app.types import RoundContext


def pictures(count: int) -> torch.Tensor:
    return torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(count)).double()


def mlp(activation=nn.ReLU, hidden: int = 150, bias: bool = True) -> nn.Module:
    torch.manual_seed(1)
    first = nn.Linear(108, hidden, bias=bias)
    return nn.Sequential(nn.Flatten(), first, activation(), nn.Linear(hidden, 10)).double()


@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_a_batch_comes_back_to_rounding(observe, count):
    pixels = pictures(count)
    result = spear()(observe(mlp(), pixels, torch.arange(count) % 10))
    pairs = match(result.images, pixels)
    torch.testing.assert_close(result.images[pairs], pixels, atol=1e-6, rtol=0)
    assert any("explain the gradient" in note for note in result.notes)


def test_a_delta_of_one_step_serves_as_well(observe):
    pixels = pictures(4)
    obs = observe(mlp(), pixels, torch.arange(4))
    delta = {name: -0.1 * entries for name, entries in obs.update.items()}
    result = spear()(replace(obs, update=delta, local_steps=1, lr=0.1))
    torch.testing.assert_close(result.images[match(result.images, pixels)], pixels, atol=1e-6, rtol=0)


def refused(obs) -> str:
    result = spear()(obs)
    assert len(result.images) == 0
    return result.notes[-1]


def test_premises_are_checked(observe):
    pixels, labels = pictures(4), torch.arange(4)
    assert "sees the input" in refused(observe(mlp(bias=False), pixels, labels))
    assert "no 4 samples" in refused(observe(mlp(nn.Sigmoid), pixels, labels))
    assert "no 4 samples" in refused(observe(mlp(hidden=6), pixels, labels))
    twice = torch.cat([pixels[:1], pixels[:1], pixels[1:3]])
    assert "rank 3" in refused(observe(mlp(), twice, torch.tensor([0, 0, 1, 2])))


@pytest.mark.parametrize("defense", [keep_topk(0.2), add_gaussian(1e-3)], ids=["pruned", "noisy"])
def test_a_defended_update_is_refused(observe, defense):
    obs = observe(mlp(), pictures(4), torch.arange(4))
    update, _ = defense.apply(obs.update, defense.init(obs.update), RoundContext(1, 0, torch.Generator()))
    assert "refused" in refused(replace(obs, update=update))
