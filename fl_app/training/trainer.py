"""Interface of local training: inputs and results common to all ways of computing an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from fl_app.training.local_data import Batch, LocalData
from fl_app.training.rules import Rules
from fl_app.types import Update


@dataclass(frozen=True)
class Job:
    """One client's work in one round."""

    round: int
    lr: float
    generator: torch.Generator
    """Random generator of the rules."""
    rules: Rules = field(default_factory=Rules)
    batch_size: int | None = None
    """Overrides the trainer's batch size, for an audited round."""
    keep_batches: bool = False
    """Return the batches too, for the truth of an audit."""


@dataclass(frozen=True)
class Trained:
    """Result of a client's local training."""

    update: Update
    samples: int
    """Weight of the update in the mean; for a Poisson draw the expected number, as the actual is private."""
    steps: int
    """Local optimiser steps; 0: the update is a gradient."""
    rate: float
    """Share of the client's samples in a regular batch."""
    loss: float
    batches: tuple[Batch, ...] = ()
    """Batches of the first pass over the round's samples, if the job asked for them."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics from a user-supplied training function."""


Trainer = Callable[[nn.Module, LocalData, Job], Trained]
"""Computes an update from a model with the round's weights, already in the right mode.

It may change the model's buffers (BatchNorm does) but not its parameters.
"""
