"""Settings of an audit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Context, Message, UserConfigValue

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]
"""A Flower mod: ``mod(message, context, call_next)`` returns the reply."""


@dataclass(frozen=True)
class AuditOptions:
    """How an app is run and attacked."""

    supernodes: int | None = None
    """Number of clients; None: the app's own federation in pyproject.toml, else Flower's default."""
    rounds: int = 2
    run_config: Sequence[str] = ()
    data: Mapping[str, Path] = field(default_factory=dict)
    """Folders or files that stand in for hub data sets, by their hub name."""
    model: str | None = None
    """``pkg.mod:factory`` of the model, where it cannot be found."""
    backend: str = "inline"
    mods: Sequence[Mod] = ()
    """Mods put around every call of the client app, the outermost first."""
    attack_seconds: float = 30.0
    """Seconds that a search may take."""
    planted_runs: int = 24
    """Calls of a client with planted bits, at most."""
    planted_seconds: float = 180.0
    """Seconds that these calls may take together."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that no audit can have."""
        if self.rounds < 1:
            raise ValueError(f"--rounds: must be at least 1, got {self.rounds}")
        if self.supernodes is not None and self.supernodes < 1:
            raise ValueError(f"--supernodes: must be at least 1, got {self.supernodes}")
        if self.backend != "inline":
            raise ValueError(f"--backend: expected inline, got {self.backend!r}: others are not watched")
        if not self.attack_seconds > 0:
            raise ValueError(f"--attack-seconds: must be above 0, got {self.attack_seconds}")


Config = Mapping[str, UserConfigValue]
