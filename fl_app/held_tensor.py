"""A Flower Array that refers to a tensor and becomes bytes only when it leaves the process.

Flower's state and model records hold bytes. In-process, turning a 44 MB model
into bytes and back for every client and round would cost more than the defense
does. Pickling (Ray) and serialising (deployment) read `data`, and get the bytes
that a plain Array of the same tensor would have.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fl_app.types import Update


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
    return torch.from_numpy(array.numpy())
