"""Inspection of a received model, before a client trains on it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fl_app.training import LocalData

logger = logging.getLogger(__name__)

SAMPLES = 64
"""Number of a client's own samples used to inspect a model."""
FEWEST = 32
"""With fewer samples, the client uses noise as input."""


@dataclass(frozen=True)
class Inspection:
    """Search for signs of a manipulated model, with a warning or a refusal."""

    look: Callable[..., Sequence[object]]
    """``look(model, inputs=, in_shape=, expected=)`` returns the suspicious findings."""
    expected: nn.Module
    """Agreed architecture, with any weights."""
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
