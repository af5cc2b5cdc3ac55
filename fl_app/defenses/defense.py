"""Defense of a client: changes before, during and after the computation of an update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from fl_app.models import ModelSpec
from fl_app.privacy import Release
from fl_app.sketches import Scheme
from fl_app.training import Rules
from fl_app.transforms import Transform, chain, identity
from fl_app.types import Trace


@dataclass(frozen=True)
class Defense:
    """One defense: its changes to update, training, model or message. The defaults change nothing."""

    transform: Transform = field(default_factory=identity)
    """Rewrites the update before it leaves."""
    rules: Rules = field(default_factory=Rules)
    """Changes of a training step."""
    model: Callable[[ModelSpec], ModelSpec] | None = None
    """Replaces the model to train."""
    check: Callable[[nn.Module], None] | None = None
    """Raises a ValueError for a model that the defense does not support."""
    release: Callable[[float, int], Release] | None = None
    """Computes a round's release from sampling rate and number of steps; differential privacy only."""
    scheme: Scheme | None = None
    """Vector to send instead of the update; clients then keep no state between rounds."""
    votes_first: bool = False
    """Whether clients vote on coordinates in round 1, in place of an update."""
    images_only: bool = False
    """Whether samples must be images with one label each."""
    server: Mapping[str, Any] | None = None
    """Settings shared with the server's strategy; nothing else may set them there."""
    baseline: str = "none"
    """Choice of ``defense`` that sends the same kind of message, unprotected."""
    trained: tuple[Trace, ...] | None = None
    """Marks that the changed training leaves on updates; None: not stated."""

    @property
    def traces(self) -> tuple[Trace, ...]:
        """Marks of the whole defense, for an adaptive attacker."""
        return self.trained_traces + self.transform.traces

    @property
    def trained_traces(self) -> tuple[Trace, ...]:
        """Marks of training; a changed training without stated marks leaves an unknown one."""
        if self.trained is not None:
            return self.trained
        changed = self.rules != Rules() or self.model is not None or self.scheme is not None
        return (Trace(),) if changed else ()

    @property
    def confined(self) -> bool:
        """Whether clients train only the entries that they send."""
        return any(trace.confined for trace in self.traces)


def protect(**parts: Defense | Transform) -> Defense:
    """Combine several defenses; transforms run in the given order.

    Two parts that change the same thing in training would silently undo each other and are refused.
    """
    defenses = {name: _as_defense(name, part) for name, part in parts.items()}
    checks = [defense.check for defense in defenses.values() if defense.check is not None]

    def check(model: nn.Module) -> None:
        for one in checks:
            one(model)

    rules = {name: defense.rules for name, defense in defenses.items()}
    return Defense(
        transform=chain(**{name: defense.transform for name, defense in defenses.items()}),
        rules=Rules(**_changes(Rules(), rules, [f.name for f in fields(Rules)])),
        check=check,
        **_changes(Defense(), defenses, ["model", "release", "scheme", "server", "baseline"]),
        votes_first=any(one.votes_first for one in defenses.values()),
        images_only=any(one.images_only for one in defenses.values()),
        trained=tuple(trace for one in defenses.values() for trace in one.trained_traces),
    )


def _as_defense(name: str, part: Defense | Transform) -> Defense:
    if isinstance(part, Defense):
        return part
    if isinstance(part, Transform):
        return Defense(transform=part)
    raise TypeError(f"protect: {name!r} must be a Defense or a Transform, got {type(part).__name__}")


def _changes(unchanged: object, parts: Mapping[str, object], names: Sequence[str]) -> dict[str, Any]:
    """Return the changed fields; no two parts may change the same one."""
    found: dict[str, Any] = {}
    changed_by: dict[str, str] = {}
    for part, settings in parts.items():
        for name in names:
            value = getattr(settings, name)
            if value is getattr(unchanged, name):
                continue
            if name in found:
                raise ValueError(f"protect: both {changed_by[name]!r} and {part!r} change {name}")
            found[name], changed_by[name] = value, part
    return found
