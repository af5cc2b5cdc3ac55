"""Facts that a strategy states about the vectors of its clients."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from fl_app.results import Exchange, Privacy, SecureSum


class Disclosure(NamedTuple):
    """Rows for a run's result, and the coordinates that they describe."""

    exchange: Exchange
    coordinates: Tensor | None = None
    secure_sum: SecureSum | None = None
    privacy: Privacy | None = None
