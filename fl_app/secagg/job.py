"""The job of a secure round: everything that decides a client's vector, except its data.

A server that gives one client a different job could read that client's vector out of the sum, for example
by a learning rate of 0 for all others. The terms therefore contain the digest of the job, and every client
recomputes it from its own order before it sends anything.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
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
    facts: str = ""
    """Facts on the task, by which clients read samples of their own, or ""."""
    config: str = ""
    """Hash of the settings that an order has for the user's own training function, see `hash_config`."""

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the job; floats enter bit by bit."""
        facts = {name: _exact(value) for name, value in asdict(self).items()}
        return hashlib.sha256(b"FLSA job" + json.dumps(facts, sort_keys=True).encode()).digest()


def hash_config(config: Mapping[str, object]) -> str:
    """Return the SHA-256 of settings, exact to the type and the last bit; "" if there are none."""
    if not config:
        return ""
    facts = [(name, repr(value)) for name, value in sorted(config.items())]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _exact(value: float | str) -> str:
    return value.hex() if isinstance(value, float) else str(value)
