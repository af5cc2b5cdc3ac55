"""Bounded reader of untrusted bytes, which must be read in order and completely."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from fl_app.secagg.errors import ProtocolError


class Reader:
    """Cursor over bytes that checks every step; errors name the part being read."""

    def __init__(self, blob: bytes, what: str) -> None:
        if not isinstance(blob, bytes | bytearray | memoryview):
            raise ProtocolError(f"{what}: expected bytes, got {type(blob).__name__}")
        self._rest = memoryview(blob).cast("B")
        self._what = what

    def take(self, size: int) -> bytes:
        """Return the next ``size`` bytes."""
        if size > len(self._rest):
            raise ProtocolError(f"{self._what}: expected {size} more bytes, got {len(self._rest)}")
        part, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return part

    def expect(self, start: bytes) -> None:
        """Go past ``start``."""
        got = bytes(self._rest[: len(start)])
        if got != start:
            raise ProtocolError(f"{self._what}: expected {start!r}, got {got!r}")
        self._rest = self._rest[len(start) :]

    def count(self, most: int) -> int:
        """Return a count of at most ``most``."""
        (number,) = struct.unpack("<I", self.take(4))
        if number > most:
            raise ProtocolError(f"{self._what}: expected at most {most} entries, got {number}")
        return int(number)

    def clients(self, most: int) -> tuple[int, ...]:
        """Return client ids, which must ascend."""
        count = self.count(most)
        ids = struct.unpack(f"<{count}I", self.take(4 * count))
        if any(left >= right for left, right in itertools.pairwise(ids)):
            raise ProtocolError(f"{self._what}: expected ascending client ids, got {list(ids)}")
        return ids

    def rest_of(self, size: int) -> bytes:
        """Return all that is left, which must be ``size`` bytes."""
        if len(self._rest) != size:
            raise ProtocolError(f"{self._what}: expected {size} more bytes, got {len(self._rest)}")
        return self.take(size)

    def rows(self, count: int, size: int) -> tuple[bytes, ...]:
        """Return ``count`` pieces of ``size`` bytes each."""
        block = self.take(count * size)
        return tuple(block[i * size : (i + 1) * size] for i in range(count))

    def end(self) -> None:
        """Check that nothing is left."""
        if self._rest:
            raise ProtocolError(f"{self._what}: expected no more bytes, got {len(self._rest)}")


def pack_clients(clients: Sequence[int]) -> bytes:
    """Write client ids for `Reader.clients`."""
    return struct.pack(f"<I{len(clients)}I", len(clients), *clients)
