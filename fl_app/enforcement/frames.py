"""Byte strings with their lengths before them, for a pipe."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence

LENGTH = struct.Struct("<Q")
CHUNK = 1 << 20


def join_frames(frames: Sequence[bytes]) -> bytes:
    """Return the lengths of all frames, and then the frames."""
    return b"".join([*(LENGTH.pack(len(frame)) for frame in frames), *frames])


def read_frames(joined: bytes, count: int) -> list[bytes]:
    """Return the frames that `join_frames` joined."""
    at, frames = count * LENGTH.size, []
    for (length,) in LENGTH.iter_unpack(joined[:at]):
        frames.append(joined[at : at + length])
        at += length
    return frames


def write_frames(descriptor: int, frames: Sequence[bytes]) -> None:
    """Write frames to a pipe."""
    left = memoryview(join_frames(frames))
    while left:
        left = left[os.write(descriptor, left[:CHUNK]) :]
