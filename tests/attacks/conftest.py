"""A client in ten lines: models, batches, and the observation that its gradient gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_app.types import Observation


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_lenet() -> nn.Module:
    """LeNet's shape on 3x8x8 images and 4 classes, in float64 so that orders of summation hardly show."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(6, 6, 5, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 4 * 4, 4),
    ).double()


@pytest.fixture
def observe() -> Callable[..., Observation]:
    def make(
        model: nn.Module, inputs: Tensor, labels: Tensor, *, granted: bool = True, **more
    ) -> Observation:
        """What the server sees of one step on ``inputs`` (as the model sees them)."""
        loss = F.cross_entropy(model(inputs), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        names = [name for name, _ in model.named_parameters()]
        facts = {
            "batch_size": len(labels),
            "num_classes": model(inputs).shape[1],
            "input_shape": tuple(inputs.shape[1:]),
            "mean": [0.0] * inputs.shape[1],
            "std": [1.0] * inputs.shape[1],
            "labels": labels if granted else None,
            "training": model.training,
        }
        return Observation(model=model, update=dict(zip(names, gradients, strict=True)), **facts | more)

    return make


@pytest.fixture
def photos(shared_data: Path) -> Tensor:
    """The first test picture of each of CIFAR-10's first eight classes (8, 3, 32, 32)."""
    from benchmarks.photographs import photographs  # here: only few tests measure on photographs

    return photographs(shared_data / "cifar10")
