"""The job of a secure round: everything that decides a client's vector, except its data.

A server that gives one client a different job could read that client's vector out of the sum, for example
by a learning rate of 0 for all others. The terms therefore contain the digest of the job, and every client
recomputes it from its own order before it sends anything.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """One training order, without the parts that may differ between clients."""

    model: str
    """Hash of the model's description."""
    weights: str
    """Hash of the weights to train from."""
    lr: float
    start: str
    """Hash of the initial weights that clients make by themselves, or ""."""
    coordinates: str
    """Hash of the agreed coordinates, or ""."""
    seed: int
    """Seed of the round's random coordinates or measurements."""
    clip: float
    settings: str = ""
    """Hash of a client's training settings: local steps, batch size, defense, data."""

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the job; floats enter bit by bit."""
        facts = {name: _exact(value) for name, value in asdict(self).items()}
        return hashlib.sha256(b"FLSA job" + json.dumps(facts, sort_keys=True).encode()).digest()


def _exact(value: float | str) -> str:
    return value.hex() if isinstance(value, float) else str(value)
