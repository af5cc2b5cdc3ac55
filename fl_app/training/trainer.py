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
    """Overrides the trainer's own, for an audited round."""
    keep_batches: bool = False
    """Return the batches too, for the truth of an audit."""


@dataclass(frozen=True)
class Trained:
    """Result of a client's local training."""

    update: Update
    samples: int
    """The update's weight in the mean; of a Poisson draw the expected number: the drawn one is private."""
    steps: int
    """Local optimiser steps; 0: the update is a gradient."""
    rate: float
    """The share of the client's samples that a regular batch has."""
    loss: float
    batches: tuple[Batch, ...] = ()
    """The batches of the first pass over the round's samples, if the job asked for them."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that a training function of one's own measured."""


Trainer = Callable[[nn.Module, LocalData, Job], Trained]
"""Computes an update from a model that holds the round's weights, in the mode it is to run in.

It may move the model's buffers (BatchNorm does), and leaves its parameters as they were.
"""
