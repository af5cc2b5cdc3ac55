"""Tensors as flat arrays of unsigned bit patterns, and back.

The rest of the codec handles patterns only, which makes it lossless: -0.0 and NaN
payloads are ordinary non-zero patterns.
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
    """Memory layout of one dtype's entries."""

    code: int
    """Number of the format in a blob; never reused or changed."""
    dtype: torch.dtype
    family: Family
    unsigned: torch.dtype
    """The unsigned integer dtype of the same width."""

    @property
    def words(self) -> np.dtype[Any]:
        """Numpy dtype of the same unsigned words."""
        return _WORDS[self.unsigned]

    def __str__(self) -> str:
        return str(self.dtype).removeprefix("torch.")


_WORDS: dict[torch.dtype, np.dtype[Any]] = {
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
}
FORMATS = (
    Format(0, torch.float32, "float", torch.uint32),
    Format(1, torch.float64, "float", torch.uint64),
    Format(2, torch.float16, "float", torch.uint16),
    Format(3, torch.bfloat16, "float", torch.uint16),
    Format(4, torch.int8, "signed", torch.uint8),
    Format(5, torch.int16, "signed", torch.uint16),
    Format(6, torch.int32, "signed", torch.uint32),
    Format(7, torch.int64, "signed", torch.uint64),
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
    entries: Array = tensor.detach().cpu().resolve_neg().view(fmt.unsigned).numpy()
    return entries.reshape(-1)


def tensor_of(patterns: Array, like: Tensor) -> Tensor:
    """Return ``patterns`` as a tensor with the shape, dtype and device of ``like``."""
    return torch.from_numpy(patterns.reshape(like.shape)).view(like.dtype).to(like.device)
