"""Atomic, checksummed file of values and tensors.

A tree holds JSON values, and also bytes, tensors, tuples and keys of any of these kinds. Nothing in
the file can run code. The file is written beside its place, flushed to disk and moved into place in
one step: a process killed at any moment leaves the old file or the new one. Its last bytes are the
hash of all others.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Tree = Any
"""None, truth values, numbers, text, bytes, tensors; lists, tuples and dictionaries of them."""

_MAGIC = b"FLAPPTREE1"
_DIGEST_BYTES = 32
_LENGTH_BYTES = 8
_MAP, _TUPLE, _PAYLOAD = "map", "tuple", "payload"
_BYTES = "bytes"
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    )
}


class DamagedFile(ValueError):
    """A file that is not, or no longer, what `write_tree` wrote."""


def write_tree(path: Path, tree: Tree, *, limit: int | None = None) -> None:
    """Write ``tree`` to the file ``path``, readable by its owner alone; the old file stays until then.

    More than ``limit`` bytes are an OSError, before anything is written.
    """
    pieces = _Encoder().pieces(tree)
    size = sum(len(piece) for piece in pieces) + _DIGEST_BYTES
    if limit is not None and size > limit:
        raise OSError(f"{path}: would take {size} bytes, and {limit} are allowed")
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in pieces:
        digest.update(piece)
    replace_file(path, [*pieces, digest.digest()])


def replace_file(path: Path, pieces: list[bytes | memoryview]) -> None:
    """Write ``pieces`` to the file ``path`` at once or not at all; a power cut cannot undo it."""
    draft = path.with_name(f"{path.name}.part")
    try:
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as stream:
            for piece in pieces:
                stream.write(piece)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):  # a second error must not hide the first
            draft.unlink()
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or what files a folder has, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_tree(path: Path, *, limit: int | None = None) -> Tree:
    """Return what `write_tree` wrote; a `DamagedFile` if it is not that, or has more than ``limit`` bytes."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if limit is not None and size > limit:
            raise DamagedFile(f"{path}: expected at most {limit} bytes, got {size}")
        if stream.read(len(_MAGIC)) != _MAGIC:  # before all of a file that may be huge
            raise DamagedFile(f"{path}: is no file of this kind")
        stream.seek(0)
        content = stream.read()
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        raise DamagedFile(f"{path}: is damaged: its checksum is not that of its content")
    try:
        return _decode(memoryview(body)[len(_MAGIC) :])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DamagedFile(f"{path}: cannot be read: {error}") from error


def stored(tree: Tree) -> Tree:
    """Return ``tree`` as it would be read back from a file; a TypeError if it cannot be stored."""
    return _decode(memoryview(b"".join(_Encoder().pieces(tree)))[len(_MAGIC) :])


class _Encoder:
    """Turns a tree into a header and payloads; what occurs several times is written once."""

    def __init__(self) -> None:
        self._payloads: list[memoryview] = []
        self._described: list[tuple[str, list[int], int]] = []
        self._known: dict[int, int] = {}

    def pieces(self, tree: Tree) -> list[bytes | memoryview]:
        header = json.dumps({"tree": self._encode(tree), "payloads": self._described}).encode()
        return [_MAGIC, len(header).to_bytes(_LENGTH_BYTES, "big"), header, *self._payloads]

    def _encode(self, node: Tree) -> Any:
        if node is None or isinstance(node, bool | int | float | str):
            return node
        if isinstance(node, bytes | Tensor):
            return {_PAYLOAD: self._payload(node)}
        if isinstance(node, dict):
            return {_MAP: [[self._encode(key), self._encode(value)] for key, value in node.items()]}
        if isinstance(node, tuple):
            return {_TUPLE: [self._encode(item) for item in node]}
        if isinstance(node, list):
            return [self._encode(item) for item in node]
        raise TypeError(f"write_tree: {type(node).__name__} cannot be stored")

    def _payload(self, node: bytes | Tensor) -> int:
        if id(node) not in self._known:
            raw = memoryview(node) if isinstance(node, bytes) else _raw(node)
            name = _BYTES if isinstance(node, bytes) else str(node.dtype).removeprefix("torch.")
            if name != _BYTES and name not in _DTYPES:
                raise TypeError(f"write_tree: tensors of {name} cannot be stored")
            shape = [len(node)] if isinstance(node, bytes) else list(node.shape)
            self._known[id(node)] = len(self._payloads)
            self._payloads.append(raw)
            self._described.append((name, shape, len(raw)))
        return self._known[id(node)]


def _raw(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _decode(body: memoryview) -> Tree:
    length = int.from_bytes(body[:_LENGTH_BYTES], "big")
    start = _LENGTH_BYTES + length
    header = json.loads(bytes(body[_LENGTH_BYTES:start]))
    return _plant(header["tree"], list(_payloads(header["payloads"], body[start:])))


def _payloads(described: list[Any], raw: memoryview) -> Iterator[bytes | Tensor]:
    offset = 0
    for name, shape, size in described:
        if not all(isinstance(number, int) and number >= 0 for number in (*shape, size)):
            raise ValueError(f"a payload must have a shape and a size, got {shape} and {size}")
        width = 1 if name == _BYTES else _DTYPES[name].itemsize
        # before anything is allocated: what is there must be what is described
        if math.prod(shape) * width != size or offset + size > len(raw):
            raise ValueError(f"{name} of shape {shape} cannot be {size} of {len(raw) - offset} bytes")
        piece, offset = raw[offset : offset + size], offset + size
        if name == _BYTES:
            yield bytes(piece)
        elif size:
            # a buffer of its own: aligned, and freed with the tensor
            yield torch.frombuffer(bytearray(piece), dtype=_DTYPES[name]).reshape(shape)
        else:
            yield torch.empty(shape, dtype=_DTYPES[name], device="cpu")


def _plant(node: Any, payloads: list[bytes | Tensor]) -> Tree:
    if isinstance(node, list):
        return [_plant(item, payloads) for item in node]
    if not isinstance(node, dict):
        return node
    ((kind, content),) = node.items()
    if kind == _PAYLOAD:
        return payloads[content]
    if kind == _TUPLE:
        return tuple(_plant(item, payloads) for item in content)
    if kind == _MAP:
        return {_plant(key, payloads): _plant(value, payloads) for key, value in content}
    raise ValueError(f"unknown kind {kind!r}")
