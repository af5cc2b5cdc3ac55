"""Knowledge of an attacker besides the update: the defense's traces, the sent entries, the scale."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from fl_app.types import Observation, Trace


def pruning_of(obs: Observation) -> Trace | None:
    """Return the trace of the first part that withholds entries by size; None if no part does."""
    return next((trace for trace in obs.defense or () if trace.withheld), None)


def added_noise(defense: Iterable[Trace] | None) -> float:
    """Return the standard deviation of noise that a defense adds to every entry; 0 if none is known."""
    return max((trace.noise for trace in defense or ()), default=0.0)


def has_feedback(obs: Observation) -> bool:
    """Return whether withheld entries are sent in later rounds."""
    return memory_of(obs) > 0


def memory_of(obs: Observation) -> float:
    """Return the share of withheld entries that the next round's update carries; 0 without feedback."""
    return min((trace.memory for trace in obs.defense or () if trace.feedback), default=0.0)


def is_confined(obs: Observation) -> bool:
    """Return whether the client trains only the entries that it sends."""
    return any(trace.confined for trace in obs.defense or ())


def sends_signs(obs: Observation) -> bool:
    """Return whether entries tell little more than their signs."""
    return any(trace.signs for trace in obs.defense or ())


def tells_all(obs: Observation) -> bool:
    """Return whether zeros of the update are zero, or nearly, in the client's gradient."""
    return obs.defense is not None and all(trace.zeros_sent for trace in obs.defense)


def travelled(obs: Observation, name: str) -> Tensor:
    """Return the mask of a parameter's sent entries; without a known one, zeros count as pruned."""
    entries = obs.update[name]
    return (obs.sent or {}).get(name, entries != 0).bool().to(entries.device)


def gradient_unit(obs: Observation) -> float:
    """Return the size in the update of a gradient of size 1, which grows with the client's local steps."""
    return 1.0 if obs.local_steps is None or obs.lr is None else obs.lr * obs.local_steps
