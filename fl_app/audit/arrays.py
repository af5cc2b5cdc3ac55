"""Arrays of a reply, matched with the state of the model that the client trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

KINDS = ("weights", "weight differences", "negated weight differences", "gradients", "negated gradients")
_CLOSE = 1e-5
_HALF = 2e-3
"""Relative rounding that is forgiven: of float32, and of 16-bit numbers."""

Name = tuple[str, str]
"""Record and key of an array."""


@dataclass(frozen=True)
class State:
    """A model before and after a client trained it."""

    start: Mapping[str, Tensor]
    final: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor] = field(default_factory=dict)

    def of(self, kind: str) -> dict[str, Tensor]:
        """Return the tensors that a reply of a kind would hold."""
        if kind == "weights":
            return dict(self.final)
        sign = -1 if kind.startswith("negated") else 1
        if kind.endswith("gradients"):
            return {name: sign * tensor for name, tensor in self.gradients.items()}
        return {
            name: sign * (tensor.double() - self.start[name].double())
            for name, tensor in self.final.items()
            if name in self.start and tensor.is_floating_point()
        }


@dataclass(frozen=True)
class Match:
    """Meaning of the arrays of a reply."""

    kind: str
    """One of `KINDS`, or "" if nothing fits."""
    names: Mapping[Name, str]
    """Name in the model of each array that fits."""
    unknown: tuple[Name, ...]
    """Arrays that are no part of the update."""
    factor: float = 1.0
    """Factor of differences or gradients that were scaled."""

    def update(self, arrays: Mapping[Name, np.ndarray], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the update by name: final minus start of weights and differences, else gradients."""
        sign = -1 if self.kind.startswith("negated") else 1
        found = {}
        for place, name in self.names.items():
            tensor = torch.from_numpy(np.array(arrays[place], dtype=np.float64))
            if self.kind == "weights":
                tensor = tensor.view(start[name].shape) - start[name].double()
            found[name] = sign * tensor.view(start[name].shape) / self.factor
        return found


def arrays_of(content: RecordDict | None) -> dict[Name, np.ndarray]:
    """Return all arrays of a message by record and key."""
    if content is None:
        return {}
    return {
        (name, key): array.numpy()
        for name, record in content.array_records.items()
        for key, array in record.items()
    }


def match(arrays: Mapping[Name, np.ndarray], state: State) -> Match:
    """Find what the arrays of a reply are, by their values; names and order only tell equal ones apart."""
    best = Match("", {}, tuple(arrays))
    for kind in KINDS:
        tensors = state.of(kind)
        names = _fitting(arrays, tensors, 1.0)
        if _weight(names, state) > _weight(best.names, state):
            best = Match(kind, names, tuple(place for place in arrays if place not in names))
    if best.names:
        return best
    for kind in ("weight differences", "gradients"):
        tensors = state.of(kind)
        factor = _factor(arrays, tensors)
        if factor is not None and (names := _fitting(arrays, tensors, factor)):
            rest = tuple(place for place in arrays if place not in names)
            return Match(kind, names, rest, factor)
    return best


def match_order(arrays: Mapping[Name, np.ndarray], start: Mapping[str, Tensor]) -> dict[Name, str]:
    """Return the names in the model of the arrays that a server sent."""
    return _fitting(arrays, start, 1.0)


def match_by_name(arrays: Mapping[Name, np.ndarray], tensors: Mapping[str, Tensor]) -> dict[Name, str]:
    """Return names by key or order and shape alone, where a mod changed the values."""
    found: dict[Name, str] = {}
    by_order = dict(zip(arrays, tensors, strict=False)) if len(arrays) == len(tensors) else {}
    for place, array in arrays.items():
        name = place[1] if place[1] in tensors else by_order.get(place)
        if name is not None and tuple(tensors[name].shape) == array.shape:
            found[place] = name
    return found


def _fitting(
    arrays: Mapping[Name, np.ndarray], tensors: Mapping[str, Tensor], factor: float
) -> dict[Name, str]:
    free = list(tensors)
    found: dict[Name, str] = {}
    for place, array in arrays.items():
        fitting = [
            name
            for name in free
            if tensors[name].numel() == array.size and _equal(array, tensors[name], factor)
        ]
        if fitting:
            key = place[1]
            # the same name, else the longest common ending, else the order of the model
            chosen = max(fitting, key=lambda name: (name == key, _common_ending(name, key)))
            found[place] = chosen
            free.remove(chosen)
    return found


def _equal(array: np.ndarray, tensor: Tensor, factor: float) -> bool:
    given, own = (
        np.asarray(array, dtype=np.float64).ravel(),
        factor * tensor.detach().double().numpy().ravel(),
    )
    rounding = _HALF if array.dtype.itemsize == 2 else _CLOSE
    scale = np.abs(own).max(initial=0.0)
    return bool(np.abs(given - own).max(initial=0.0) <= rounding * scale)


def _factor(arrays: Mapping[Name, np.ndarray], tensors: Mapping[str, Tensor]) -> float | None:
    """Return the factor that turns tensors of the same shapes into the arrays."""
    for array in arrays.values():
        for tensor in tensors.values():
            own = tensor.detach().double().numpy().ravel()
            if own.size > 1 and own.size == array.size and own.any():
                factor = float(np.asarray(array, dtype=np.float64).ravel() @ own / (own @ own))
                if factor and _equal(array, tensor, factor):
                    return factor
    return None


def _weight(names: Mapping[Name, str], state: State) -> int:
    """Return the number of entries that are explained and that changed."""
    return sum(1 + state.final[name].numel() for name in names.values() if name in state.final)


def _common_ending(first: str, second: str) -> int:
    ours, theirs = first.split(".")[::-1], second.split(".")[::-1]
    return next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
