"""A Flower Array that refers to a tensor and becomes bytes only when it leaves the process.

Flower's state and model records hold bytes. In-process, turning a 44 MB model
into bytes and back for every client and round would cost more than the defense
does. Pickling (Ray) and serialising (deployment) read `data`, and get the bytes
that a plain Array of the same tensor would have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fl_app.types import Update

_LONGEST_HEADER = 1 << 12
_MOST_DIMENSIONS = 32
_HEADER = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '(?P<dtype>[<|](?:b1|[iu][1248]|f[248]))', "
    rb"'fortran_order': (?P<columns>True|False), "
    rb"'shape': \((?P<shape>(?:\d{1,18}, ?)*(?:\d{1,18})?)\), \} *\n",
    re.DOTALL,
)
"""Header of numpy's format, version 1.0."""


class HeldTensor(Array):
    """An Array by reference. The tensor must not be written to afterwards."""

    def __init__(self, tensor: Tensor) -> None:
        fields = self.__dict__  # not setattr: `data` is computed, not set
        fields["tensor"] = tensor
        fields["dtype"] = str(tensor.dtype).removeprefix("torch.")
        fields["shape"] = tuple(tensor.shape)
        fields["stype"] = "numpy.ndarray"

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The bytes of a plain Array."""
        return Array.from_torch_tensor(self.__dict__["tensor"]).data

    def __reduce__(self) -> tuple[type[Array], tuple[str, tuple[int, ...], str, bytes]]:
        return Array, (self.dtype, self.shape, self.stype, self.data)


def hold(tensors: Mapping[str, Tensor]) -> ArrayRecord:
    """Put tensors into a record without copying them."""
    record = ArrayRecord()  # item by item: its constructor would copy every Array
    for name, tensor in tensors.items():
        record[name] = HeldTensor(tensor.detach() if tensor.requires_grad else tensor)
    return record


def release(record: ArrayRecord, device: torch.device | None = None) -> Update:
    """Return the tensors of a record, by reference where it holds references."""
    return {name: _tensor(array).to(device) for name, array in record.items()}


def _tensor(array: Array) -> Tensor:
    if isinstance(array, HeldTensor):
        held: Tensor = array.__dict__["tensor"]
        return held
    return torch.from_numpy(_read(array))


def _read(array: Array) -> np.ndarray:
    """Read an Array's bytes; nothing is allocated for numbers that are not there, no text is evaluated."""
    header = _HEADER.match(array.data[:_LONGEST_HEADER])
    if header is None:
        raise ValueError(f"an array must begin as numpy writes it, got {array.data[:16]!r}")
    dtype = np.dtype(header["dtype"].decode())
    shape = tuple(int(size) for size in header["shape"].decode().replace(" ", "").split(",") if size)
    expected, got = math.prod(shape) * dtype.itemsize, len(array.data) - header.end()
    if expected != got or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"an array of shape {shape} and type {dtype} must have {expected} bytes, got {got}")
    order: Literal["C", "F"] = "F" if header["columns"] == b"True" else "C"
    return np.frombuffer(array.data, dtype, offset=header.end()).reshape(shape, order=order).copy()
