"""A strategy of one's own: the server steps by the sign of the mean gradient."""

from __future__ import annotations

from typing import Any

from fl_app.strategies import FedSGD
from fl_app.types import Update


class SignSteps(FedSGD):
    """``x <- x - lr * scale * sign(mean)``; nothing is remembered between rounds."""

    def __init__(self, *args: Any, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not scale > 0:
            raise ValueError(f"SignSteps: scale must be positive, got {scale}")
        self.scale = scale

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the next model."""
        return super().step({name: self.scale * g.sign() for name, g in mean.items()}, server_round)
