"""Small victims, and a client that trains on what it is sent."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_app.types import Observation

SHAPE = (3, 8, 8)
MEAN, STD = [0.5, 0.45, 0.4], [0.25, 0.2, 0.3]


def as_inputs(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(values, dtype=pixels.dtype).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std


def draw(count: int, seed: int, levels: bool = False) -> Tensor:
    """Return pixels in [0, 1], real numbers or one of 256 levels."""
    pixels = torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    # of different brightness: else every functional measures noise alone
    pixels = pixels * (0.2 + 0.8 * pixels[:, :1, :1, :1])
    return (255 * pixels).round() / 255 if levels else pixels


@pytest.fixture
def victims() -> Callable[..., Tensor]:
    return draw


@pytest.fixture
def train(observe) -> Callable[..., Observation]:
    def make(model: nn.Module, pixels: Tensor, labels: Tensor, *, steps: int | None = None, lr=0.01, **more):
        """What the server sees of one gradient, or of ``steps`` local steps."""
        inputs = as_inputs(pixels).to(next(model.parameters()).dtype)
        obs = observe(model, inputs, labels, **{"granted": False, "mean": MEAN, "std": STD} | more)
        if steps is None:
            return obs
        local = copy.deepcopy(model)
        optimiser = torch.optim.SGD(local.parameters(), lr=lr)
        for _ in range(steps):
            optimiser.zero_grad()
            F.cross_entropy(local(inputs), labels).backward()
            optimiser.step()
        before = dict(model.named_parameters())
        delta = {name: (after - before[name]).detach() for name, after in local.named_parameters()}
        return Observation(**{**vars(obs), "update": delta, "lr": lr, "local_steps": steps})

    return make


@pytest.fixture
def settings() -> dict:
    """The normalisation, for planting."""
    return {"in_shape": SHAPE, "mean": MEAN, "std": STD}
