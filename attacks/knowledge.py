"""The defense as the attacker knows it: its parts by name, with their settings.

A defense is public: the server hands it out. An observation carries it as the
config does, a tree of ``_target_`` nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from fl_app.types import Observation

_CONTAINERS = ("chain", "protect")
_FEEDBACK = "error_feedback"
_PRUNING: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "fl_app.defenses.adgp": ("prune_aligned", {}),
    "fl_app.defenses.dgp": ("prune_dual", {}),
    "fl_app.defenses.graddrop": ("drop_smallest", {}),
    "fl_app.defenses.outpost": ("perturb_outpost", {}),
    "fl_app.defenses.topk": ("keep_topk", {"share": "k"}),
}
"""Defenses that are one transform with error feedback: the transform, and those of its settings that have
another name there."""


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
    return list(_parts(obs.defense, feedback=False)) if obs.defense is not None else []


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
    target = str(node.get("_target_", ""))
    name = target.rpartition(".")[2]
    if name in _CONTAINERS or name == _FEEDBACK or not name:
        wrapped = feedback or (name == _FEEDBACK and node.get("enabled", True) is not False)
        for child in node.values():
            if isinstance(child, Mapping):
                yield from _parts(child, wrapped)
    elif target in _PRUNING:
        transform, renamed = _PRUNING[target]
        own = {renamed.get(key, key): value for key, value in node.items()}
        wrapped = feedback or own.pop(_FEEDBACK, True) is not False
        yield from _parts(own | {"_target_": transform}, wrapped)
    else:
        yield Part(name, {key: value for key, value in node.items() if key != "_target_"}, feedback)
