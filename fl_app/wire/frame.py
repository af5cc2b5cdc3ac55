"""Frame of a blob: its kind, the tensors it is for, and a checksum.

Layout: ``FW``, a version, the kind (``U`` update, ``C`` change), a checksum of the
sorted names, the content, and a CRC-32 of all of it. The CRC also covers data that both ends
already hold (masks, old weights), so a wrong mask is detected at no extra byte.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Iterable
from typing import Literal

from fl_app.wire.errors import CodecError
from fl_app.wire.patterns import Array

Kind = Literal["update", "change"]

VERSION = 1
_READABLE = (1,)
_MAGIC = b"FW"
_KINDS: dict[Kind, bytes] = {"update": b"U", "change": b"C"}
_SHARED: dict[Kind, str] = {"update": "known positions (within)", "change": "old weights"}
_PROLOGUE = struct.Struct("<2sB1sI")
_CRC = struct.Struct("<I")


def seal(
    kind: Kind, names: Collection[str], content: Iterable[bytes | memoryview], shared: Iterable[Array]
) -> bytes:
    """Put ``content`` into a frame; the reader must hold the same ``shared`` bytes."""
    parts = [_PROLOGUE.pack(_MAGIC, VERSION, _KINDS[kind], _checksum_of_names(names)), *content]
    checksum = _checksum(parts, _checksum(map(_bytes_of, shared)))
    return b"".join([*parts, _CRC.pack(checksum)])


def unseal(kind: Kind, names: Collection[str], blob: bytes, shared: Iterable[Array]) -> memoryview:
    """Return the content of a frame, or raise `CodecError`; the inverse of `seal`."""
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise CodecError(f"wire: expected bytes, got {type(blob).__name__}")
    view = memoryview(bytes(blob))
    if len(view) < _PROLOGUE.size + _CRC.size:
        raise CodecError(f"wire: expected at least {_PROLOGUE.size + _CRC.size} bytes, got {len(view)}")
    magic, version, letter, checksum_of_names = _PROLOGUE.unpack_from(view)
    if magic != _MAGIC:
        raise CodecError(f"wire: expected a blob that begins with {_MAGIC!r}, got {magic!r}")
    if version not in _READABLE:
        readable = ", ".join(map(str, _READABLE))
        raise CodecError(f"wire: the blob has version {version}, this side reads version {readable}")
    if letter != _KINDS[kind]:
        came = {code: name for name, code in _KINDS.items()}.get(letter, repr(letter))
        raise CodecError(f"wire: expected a blob of kind {kind}, got one of kind {came}")
    if checksum_of_names != _checksum_of_names(names):
        raise CodecError(f"wire: the blob is for tensors of other names, expected {_abbreviate(names)}")
    (checksum,) = _CRC.unpack_from(view, len(view) - _CRC.size)
    if checksum != _checksum([view[: -_CRC.size]], _checksum(map(_bytes_of, shared))):
        raise CodecError(
            f"wire: the checksum does not match: the blob is damaged, or was made with other {_SHARED[kind]}"
        )
    return view[_PROLOGUE.size : -_CRC.size]


def _checksum_of_names(names: Iterable[str]) -> int:
    return zlib.crc32("\0".join(sorted(names)).encode())


def _checksum(parts: Iterable[bytes | memoryview], start: int = 0) -> int:
    for part in parts:
        start = zlib.crc32(part, start)
    return start


def _bytes_of(array: Array) -> bytes | memoryview:
    return memoryview(array).cast("B") if array.size else b""  # type: ignore[arg-type]


def _abbreviate(names: Collection[str]) -> str:
    ordered = sorted(names)
    shown = ordered if len(ordered) <= 4 else [*ordered[:3], "…", ordered[-1]]
    return f"{len(ordered)}: {', '.join(shown)}"
