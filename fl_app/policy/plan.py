"""Plain descriptions of a run, an order and an answer: the only inputs of a policy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Part:
    """One step of a defense as built: the callable's name and all of its arguments."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Noise:
    """Differential privacy of a run as built."""

    unit: str
    """Unit of protection: ``client`` or ``record``."""
    delta: float
    epsilon: float | None = None
    """Budget that the run promises."""
    records: bool = False
    """True if single records have noise of their own beside that of their client."""

    def protects(self, unit: str) -> bool:
        """Return whether a demanded unit has noise: ``client``, ``record``, or ``any``."""
        return unit in ("any", self.unit) or (unit == "record" and self.records)


@dataclass(frozen=True)
class RunPlan:
    """One run, as this node would take part in it."""

    model: str
    model_hash: str
    parts: tuple[Part, ...] = ()
    """Steps of the defense, outermost first."""
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
        """Return the regular batch size of a client with ``samples`` samples."""
        return min(self.batch_size or samples, samples)

    def steps_of(self, samples: int) -> int:
        """Return the number of local steps per round of a client with ``samples`` samples."""
        if self.steps is not None or self.epochs is None:
            return self.steps or 1
        return self.epochs * -(-samples // max(1, self.batch_of(samples)))

    @cached_property
    def digest(self) -> str:
        """Hash that identifies the plan."""
        text = json.dumps(asdict(self), sort_keys=True, default=str)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass(frozen=True)
class AuditAsk:
    """Request for raw samples, or for the undefended update."""

    samples: int
    """Requested samples; 0: one batch."""
    run: int
    bundle: str = ""
    """Hash of the requesting app bundle, if known."""


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
    """One answer about to leave the node."""

    kind: str
    bytes: int
    batch: int
    """Number of samples in the smallest batch behind the answer."""
    samples: int
    buffers: bool = False
    audit: AuditAsk | None = None
