"""Byte strings with their lengths before them, over a pipe that must not be believed."""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Sequence

from fl_app.policy import Refusal

_LENGTH = struct.Struct("<Q")
_CHUNK = 1 << 20


def join_frames(frames: Sequence[bytes]) -> bytes:
    """Return the lengths of all frames, and then the frames."""
    return b"".join([*(_LENGTH.pack(len(frame)) for frame in frames), *frames])


def read_frames(joined: bytes, count: int) -> list[bytes]:
    """Return the frames that `join_frames` joined."""
    at, frames = count * _LENGTH.size, []
    for (length,) in _LENGTH.iter_unpack(joined[:at]):
        frames.append(joined[at : at + length])
        at += length
    return frames


def write_frames(descriptor: int, frames: Sequence[bytes]) -> None:
    """Write frames to a pipe."""
    left = memoryview(join_frames(frames))
    while left:
        left = left[os.write(descriptor, left[:_CHUNK]) :]


def receive_frames(descriptor: int, count: int, most: int, seconds: float) -> list[bytes]:
    """Return frames of at most ``most`` bytes together; refuse more, and a writer that is late or gone."""
    deadline = time.monotonic() + seconds
    came, header = bytearray(), count * _LENGTH.size
    while len(came) < header or len(came) < header + _total(came, count, most):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise Refusal("time", f"no answer within {seconds:g} seconds")
        chunk = os.read(descriptor, _CHUNK)
        if not chunk:
            raise Refusal("internal", "the app's process ended without an answer")
        came += chunk
    return read_frames(bytes(came), count)


def _total(came: bytearray, count: int, most: int) -> int:
    total = sum(int(length) for (length,) in _LENGTH.iter_unpack(came[: count * _LENGTH.size]))
    if total > most:
        raise Refusal("bytes", f"the app answers with {total} bytes, at most {most} are read")
    return total
