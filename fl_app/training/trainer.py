"""What local training takes and gives, whichever way it computes the update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from fl_app.training.local_data import Batch, LocalData
from fl_app.types import Update


@dataclass(frozen=True)
class Job:
    """One client's work in one round."""

    round: int
    lr: float
    batch_size: int | None = None
    """Overrides the trainer's own, for an audited round."""
    keep_batches: bool = False
    """Return the batches too, for the truth of an audit."""


@dataclass(frozen=True)
class Trained:
    """What came out of a client's work."""

    update: Update
    samples: int
    steps: int
    """Local optimiser steps; 0: the update is a gradient."""
    loss: float
    batches: tuple[Batch, ...] = ()
    """The batches of the first pass over the round's samples, if the job asked for them."""


Trainer = Callable[[nn.Module, LocalData, Job], Trained]
"""Computes an update from a model that holds the round's weights, in the mode it is to run in.

It may move the model's buffers (BatchNorm does), and leaves its parameters as they were.
"""


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters by name, in the model's order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}
