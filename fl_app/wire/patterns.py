"""Tensors as flat arrays of unsigned bit patterns, and back.

Everything behind this module sees patterns only. That is what makes the wire
lossless: a pattern is zero or it is not, so -0.0 and NaN payloads need no care.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
Family = Literal["float", "signed", "unsigned"]


class Format(NamedTuple):
    """How entries of one dtype lie in memory."""

    code: int
    """Its number in a blob: never reused, never changed."""
    dtype: torch.dtype
    family: Family
    integer: torch.dtype
    """An integer dtype of the same width that numpy has, too."""

    @property
    def words(self) -> np.dtype[Any]:
        """The unsigned numpy dtype of the same width."""
        return np.dtype(f"u{self.dtype.itemsize}")

    def __str__(self) -> str:
        return str(self.dtype).removeprefix("torch.")


FORMATS = (
    Format(0, torch.float32, "float", torch.int32),
    Format(1, torch.float64, "float", torch.int64),
    Format(2, torch.float16, "float", torch.int16),
    Format(3, torch.bfloat16, "float", torch.int16),
    Format(4, torch.int8, "signed", torch.int8),
    Format(5, torch.int16, "signed", torch.int16),
    Format(6, torch.int32, "signed", torch.int32),
    Format(7, torch.int64, "signed", torch.int64),
    Format(8, torch.uint8, "unsigned", torch.uint8),
    Format(9, torch.bool, "unsigned", torch.uint8),
)
_BY_DTYPE = {f.dtype: f for f in FORMATS}


def format_of(name: str, tensor: Tensor) -> Format:
    """Return the format of ``tensor``; ``name`` is for the error message."""
    found = _BY_DTYPE.get(tensor.dtype)
    if found is None:
        raise ValueError(
            f"wire: tensor {name!r} has dtype {tensor.dtype}, expected one of {', '.join(map(str, FORMATS))}"
        )
    return found


def patterns_of(tensor: Tensor, fmt: Format) -> Array:
    """Return the entries of ``tensor`` as a flat array, sharing memory where possible."""
    flat = tensor.detach().cpu().resolve_neg().contiguous().reshape(-1)
    patterns: Array = flat.view(fmt.integer).numpy().view(fmt.words)
    return patterns


def tensor_of(patterns: Array, like: Tensor) -> Tensor:
    """Return ``patterns`` as a tensor with the shape, dtype and device of ``like``."""
    fmt = _BY_DTYPE[like.dtype]
    flat = torch.from_numpy(patterns.view(np.dtype(str(fmt.integer).removeprefix("torch."))))
    return flat.view(fmt.dtype).reshape(like.shape).to(like.device)
