"""Plain descriptions of a run, of one order and of one answer: all that a policy looks at."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Part:
    """One step of a defense as it was built: the callable's name and everything that it was called with."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Noise:
    """Differential privacy as it was built."""

    unit: str
    """``client`` or ``record``: the thing that is protected."""
    delta: float
    epsilon: float | None = None
    """The budget that the run promises."""


@dataclass(frozen=True)
class RunPlan:
    """One run as this node would take part in it."""

    model: str
    model_hash: str
    parts: tuple[Part, ...] = ()
    """The steps of the defense, outer ones first."""
    batch_size: int | None = None
    epochs: int | None = None
    """Passes over the node's samples in a round; None: a single batch."""
    steps: int | None = None
    """Local steps in a round, instead of passes."""
    rounds: int = 1
    clients: int = 1
    secagg: bool = False
    noise: Noise | None = None

    def batch_of(self, samples: int) -> int:
        """Return the size of a regular batch of a client with so many samples."""
        return min(self.batch_size or samples, samples)

    def steps_of(self, samples: int) -> int:
        """Return the number of local steps in a round of a client with so many samples."""
        if self.steps is not None or self.epochs is None:
            return self.steps or 1
        return self.epochs * -(-samples // max(1, self.batch_of(samples)))

    @cached_property
    def digest(self) -> str:
        """Tell this plan from others."""
        text = json.dumps(asdict(self), sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class AuditAsk:
    """A request for samples themselves, or for the update without its defense."""

    samples: int
    """0: as many as a batch has."""
    run: int
    bundle: str = ""
    """The hash of the app bundle that asks, as far as it is known."""


@dataclass(frozen=True)
class Ask:
    """One order."""

    kind: str
    round: int
    model: str
    model_hash: str
    cohort: int | None = None
    """Number of participants, if the order names it."""
    audit: AuditAsk | None = None


@dataclass(frozen=True)
class Leaving:
    """One answer, before it leaves."""

    kind: str
    bytes: int
    batch: int
    """Samples in the smallest batch that it was computed on."""
    samples: int
    buffers: bool = False
    audit: AuditAsk | None = None
