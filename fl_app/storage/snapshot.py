"""Snapshots of live objects: equal if and only if all data in two objects are, bit for bit.

They look where a value may hide: in attributes, containers, generators of random numbers, closures of
functions and the module variables that a function names.
"""

from __future__ import annotations

import hashlib
import random
import types
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

Snapshot = Any
"""Nested tuples of text and bytes, to be compared with ``==``."""


@dataclass
class _Walk:
    """One walk through an object."""

    libraries: Collection[str]
    """Packages whose functions and objects are no memory of anybody else."""
    path: set[int] = field(default_factory=set)
    functions: dict[int, types.FunctionType] = field(default_factory=dict)

    def take(self, value: Any) -> Snapshot:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return type(value).__name__, repr(value)
        if isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
            return "name", repr(value)
        if id(value) in self.path:
            return ("cycle",)
        self.path.add(id(value))
        try:
            return type(value).__qualname__, self._inside(value)
        finally:
            self.path.remove(id(value))

    def _inside(self, value: Any) -> Snapshot:
        if isinstance(value, Tensor):
            return _digest(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()), (
                str(value.dtype),
                tuple(value.shape),
            )
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return _digest(np.ascontiguousarray(value)), (str(value.dtype), value.shape)
        if isinstance(value, torch.Generator):
            return self.take(value.get_state())
        # rows of a result count as mappings for other libraries, without being iterable as such
        if isinstance(value, Mapping) and hasattr(value, "items"):
            return tuple(sorted(((self.take(k), self.take(v)) for k, v in value.items()), key=repr))
        if isinstance(value, set | frozenset):
            return tuple(sorted((self.take(item) for item in value), key=repr))
        if isinstance(value, list | tuple):
            return tuple(self.take(item) for item in value)
        if isinstance(value, types.FunctionType):
            name = f"{value.__module__}.{value.__qualname__}"
            if id(value) in self.functions:
                return name
            self.functions[id(value)] = value
            return name, self._hidden(value)
        if isinstance(value, types.MethodType):
            return self.take(value.__func__), self.take(value.__self__)
        if isinstance(value, partial):
            return self.take(value.func), self.take(value.args), self.take(value.keywords)
        reduced = value.__reduce_ex__(2)
        if isinstance(reduced, str):
            return reduced
        # how to make the object again: its arguments, its state, and items that come one by one
        listed = [list(part) for part in reduced[3:5] if isinstance(part, Iterator)]
        return self.take([*(_without_caches(part, type(value)) for part in reduced[1:3]), *listed])

    def _hidden(self, function: types.FunctionType) -> Snapshot:
        cells = [_content(cell) for cell in function.__closure__ or ()]
        inside = self.take([function.__defaults__, function.__kwdefaults__, function.__dict__, cells])
        if _root(function) in self.libraries:
            return inside
        variables = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        return inside, self.take({name: value for name, value in variables.items() if self._remembers(value)})

    def _remembers(self, value: Any) -> bool:
        """Say whether a module's variable may be a memory: not a library's function, class or logger."""
        if isinstance(value, _PLAIN):
            return True
        if isinstance(value, type | types.ModuleType):
            return False
        return _root(value if isinstance(value, types.FunctionType) else type(value)) not in self.libraries


_PLAIN = (
    *(bool, int, float, str, bytes, list, tuple, dict, set, deque),
    *(Tensor, np.ndarray, torch.Generator, np.random.Generator, random.Random),
)


def snapshot(value: Any, *, libraries: Collection[str] = ()) -> Snapshot:
    """Return the data in ``value``; a TypeError if it has some that cannot be reached."""
    return _Walk(libraries).take(value)


def functions_in(value: Any, *, libraries: Collection[str] = ()) -> list[types.FunctionType]:
    """Return all functions that ``value`` holds, and those that they name."""
    walk = _Walk(libraries)
    walk.take(value)
    return list(walk.functions.values())


def members_of(kind: type) -> list[Any]:
    """Return the functions of a class, also those of properties, and the data that its objects share."""
    found: list[Any] = []
    for name, member in vars(kind).items():
        part = getattr(member, "fget", None) or getattr(member, "__func__", member)
        own_data = not name.startswith(("__", "_abc_")) and not hasattr(part, "__get__")
        if own_data or isinstance(part, types.FunctionType):
            found.append(part)
    return found


def _root(part: Any) -> str:
    return str(getattr(part, "__module__", "")).split(".")[0]


def _without_caches(state: Any, kind: type) -> Any:
    """Leave out of an object's attributes what a ``cached_property`` has computed from the others."""
    if not isinstance(state, dict):
        return state
    return {k: v for k, v in state.items() if not isinstance(getattr(kind, str(k), None), cached_property)}


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet assigned
        return None


def _digest(array: np.ndarray[Any, Any]) -> bytes:
    return hashlib.blake2b(array.tobytes(), digest_size=16).digest()
