"""The IDX format of the MNIST family: two zero bytes, a type, a rank, big-endian sizes, then the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

UINT8 = 0x08


def read_idx(path: str | Path) -> Tensor:
    """Return the uint8 tensor that an IDX file holds; a name that ends in .gz is unpacked first."""
    path = Path(path)
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"read_idx: {path} is not a whole gzip file: {error}") from error
    return _parse(content, path)


def _parse(content: bytes, path: Path) -> Tensor:
    if len(content) < 4 or content[:2] != b"\0\0":
        raise ValueError(f"read_idx: {path} does not begin like an IDX file: {content[:4].hex(' ')}")
    kind, rank = content[2], content[3]
    if kind != UINT8:
        raise ValueError(f"read_idx: {path} must hold bytes (type 0x08), got type {kind:#04x}")
    start = 4 + 4 * rank
    if len(content) < start:
        raise ValueError(f"read_idx: {path} ends within its header")
    shape = struct.unpack(f">{rank}I", content[4:start])
    expected, got = math.prod(shape), len(content) - start
    if got != expected:
        raise ValueError(f"read_idx: {path} must hold {expected} bytes for shape {shape}, got {got}")
    # copied: the bytes of a file are read-only, a tensor's are not
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy())
