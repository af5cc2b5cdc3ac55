"""A client's look at the model that it was sent, before it trains on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fl_app.training import LocalData

logger = logging.getLogger(__name__)

SAMPLES = 64
"""Number of its own samples that a client shows the model."""
FEWEST = 32
"""With fewer of its own it takes noise."""


@dataclass(frozen=True)
class Inspection:
    """Looks for the marks of a manipulated model, and warns or refuses."""

    look: Callable[..., Sequence[object]]
    """``look(model, inputs=, in_shape=, expected=)`` returns the suspicious findings."""
    expected: nn.Module
    """The architecture that was agreed on, with any weights."""
    refuse: bool

    def __call__(self, model: nn.Module, data: LocalData, *, who: str) -> None:
        """Warn of suspicious parts of ``model``, or refuse it with a PermissionError."""
        shown = data.batch(
            torch.arange(min(SAMPLES, len(data))),
            next(model.parameters()).device,
            next(model.parameters()).dtype,
        ).inputs
        inputs = shown if len(shown) >= FEWEST else None
        found = self.look(model, inputs=inputs, in_shape=tuple(shown.shape[1:]), expected=self.expected)
        if not found:
            return
        reasons = "; ".join(str(finding) for finding in found)
        if self.refuse:
            raise PermissionError(f"{who}: refuses a suspicious model: {reasons}")
        logger.warning("%s: trains on a suspicious model: %s", who, reasons)
