"""The IDX format of the MNIST family: two zero bytes, a type, a rank, big-endian sizes, then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

UINT8 = 0x08
LARGEST = 1 << 30
"""Bytes that a file may unpack to; MNIST's largest has 47 million."""
_MOST_DIMENSIONS = 8


def read_idx(path: str | Path) -> Tensor:
    """Return the uint8 tensor that an IDX file holds; a name that ends in .gz is unpacked on the way."""
    path = Path(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read(cast(BinaryIO, file), path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"read_idx: {path} is not a whole gzip file: {error}") from error


def _read(file: BinaryIO, path: Path) -> Tensor:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0":
        raise ValueError(f"read_idx: {path} does not begin like an IDX file: {start.hex(' ')}")
    kind, rank = start[2], start[3]
    if kind != UINT8:
        raise ValueError(f"read_idx: {path} must hold bytes (type 0x08), got type {kind:#04x}")
    if rank > _MOST_DIMENSIONS:
        raise ValueError(f"read_idx: {path} must have at most {_MOST_DIMENSIONS} dimensions, got {rank}")
    sizes = file.read(4 * rank)
    if len(sizes) < 4 * rank:
        raise ValueError(f"read_idx: {path} ends within its header")
    shape = struct.unpack(f">{rank}I", sizes)
    expected = math.prod(shape)
    if expected > LARGEST:
        raise ValueError(f"read_idx: {path} must hold at most {LARGEST} bytes, got shape {shape}")
    # one more than there should be: a few bytes of gzip can unpack to any number
    content = file.read(expected + 1)
    if len(content) != expected:
        got = f"{len(content)}" if len(content) < expected else "more"
        raise ValueError(f"read_idx: {path} must hold {expected} bytes for shape {shape}, got {got}")
    # copied: the bytes of a file are read-only, a tensor's are not
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).reshape(shape).copy())
