"""Fingerprint of a transform: of its code and of every setting that it closes over."""

from __future__ import annotations

import functools
import hashlib
import types
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

from torch import Tensor

from fl_app.storage.fingerprint import hash_tensors
from fl_app.transforms import Transform

_DEEPEST = 64


def fingerprint(transform: Transform) -> str:
    """Return a hash that differs if the transform's code or any of its settings differs."""
    text = "\n".join(_describe(transform, 0))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _describe(value: object, depth: int) -> Iterator[str]:
    if depth > _DEEPEST:
        raise ValueError("fingerprint: a transform is nested too deeply to be told from others")
    inner = functools.partial(_describe, depth=depth + 1)
    if isinstance(value, types.FunctionType):
        yield f"function {value.__module__}.{value.__qualname__} {value.__code__.co_code.hex()}"
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        for name, cell in cells:
            yield name
            # a function that calls itself by name closes over itself
            if cell.cell_contents is not value:
                yield from inner(cell.cell_contents)
        for constant in (*value.__code__.co_consts, *(value.__defaults__ or ())):
            yield from inner(constant)
    elif isinstance(value, types.CodeType):
        yield f"code {value.co_name} {value.co_code.hex()}"
        for constant in value.co_consts:
            yield from inner(constant)
    elif isinstance(value, functools.partial):
        yield "partial"
        for part in (value.func, value.args, dict(value.keywords)):
            yield from inner(part)
    elif isinstance(value, Tensor):
        yield f"tensor {tuple(value.shape)} {value.dtype} {hash_tensors([value])}"
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield f"key {key!r}"
            yield from inner(item)
    elif isinstance(value, list | tuple | set | frozenset):
        yield f"{type(value).__name__} of {len(value)}"
        for item in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            yield from inner(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield f"value {type(value).__qualname__}"
        for one in fields(value):
            yield one.name
            yield from inner(getattr(value, one.name))
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes):
        yield repr(value)
    else:  # modules, classes and builtins by name; other objects by type and attributes
        called = getattr(value, "__qualname__", getattr(value, "__name__", None))
        yield f"object {type(value).__qualname__} {called}"
        if called is None:
            yield from inner(vars(value) if hasattr(value, "__dict__") else repr(type(value)))
