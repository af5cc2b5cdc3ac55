"""The defense as the attacker knows it: its parts by name, with their settings.

A defense is public: the server hands it out. An observation carries it as the
config does, a tree of ``_target_`` nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from fl_app.types import Observation

ADDS_NOISE = ("add_gaussian", "add_laplace")
"""Parts that add noise of a fixed size to every entry."""
_CONTAINERS = ("chain", "protect")
_FEEDBACK = "error_feedback"


@dataclass(frozen=True)
class Part:
    """One transform or training-time defense."""

    name: str
    """Of its factory, such as `prune_dual`."""
    settings: Mapping[str, object]
    feedback: bool
    """True if withheld entries are sent in later rounds."""


def defense_parts(obs: Observation) -> list[Part]:
    """Return the parts of the defense in the order in which they are applied; none if it is not known."""
    return parts_of(obs.defense)


def parts_of(defense: Mapping[str, object] | None) -> list[Part]:
    """Return the parts of a defense that is given as its config, in order; none if it is not known."""
    return list(_parts(defense, feedback=False)) if defense is not None else []


def added_noise(defense: Mapping[str, object] | None) -> float:
    """Return the standard deviation of noise that a defense adds whatever the update's size; 0 if none."""
    stds = [part.settings.get("std") for part in parts_of(defense) if part.name in ADDS_NOISE]
    return max((float(std) for std in stds if isinstance(std, int | float)), default=0.0)


def find_part(obs: Observation, *names: str) -> Part | None:
    """Return the first part that has one of these names."""
    return next((part for part in defense_parts(obs) if part.name in names), None)


def has_feedback(obs: Observation) -> bool:
    """Return whether anything that was withheld comes back in later rounds."""
    return any(part.feedback for part in defense_parts(obs))


def travelled(obs: Observation, name: str) -> Tensor:
    """Return which entries of a parameter were sent; without a mask, a zero looks like a pruned one."""
    entries = obs.update[name]
    return (obs.sent or {}).get(name, entries != 0).bool().to(entries.device)


def gradient_unit(obs: Observation) -> float:
    """Return the size in the update of a gradient of size 1: the way that the client's local steps go."""
    return 1.0 if obs.local_steps is None or obs.lr is None else obs.lr * obs.local_steps


def _parts(node: Mapping[str, object], feedback: bool) -> Iterator[Part]:
    name = str(node.get("_target_", "")).rpartition(".")[2]
    if name in _CONTAINERS or name == _FEEDBACK or not name:
        wrapped = feedback or (name == _FEEDBACK and node.get("enabled", True) is not False)
        for child in node.values():
            if isinstance(child, Mapping):
                yield from _parts(child, wrapped)
    else:
        yield Part(name, {key: value for key, value in node.items() if key != "_target_"}, feedback)
