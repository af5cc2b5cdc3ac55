"""Arrays of a Flower record as tensors, and back in the form in which they came."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fl_app.flower.held_tensor import HeldTensor, release
from fl_app.types import Update

_PLAIN = "numpy.ndarray"
_EMPTY = "_empty"
"""Key of the one entry that stands for no arrays in messages of the legacy API."""
_BRAIN, _TWO_BYTES = "bfloat16", b"'|V2'"
"""Type of an Array of brain floats, and the type that numpy writes for them: it has no name of its own."""
_COUNTER = "num_batches_tracked"
_STATISTICS = ("running_mean", "running_var", _COUNTER)
_LEAST_BITS = 32


class Unreadable(ValueError):
    """Records in which a mod cannot tell the update from the rest; nothing of them may leave."""


def read_arrays(record: ArrayRecord, where: str) -> Update:
    """Return the tensors of a record; ``where`` names it in errors."""
    tensors: Update = {}
    for name, array in record.items():
        if name == _EMPTY and array.data == b"":
            continue
        if array.stype != _PLAIN:
            raise Unreadable(f"{where}: {name!r} is packed as {array.stype!r}, expected {_PLAIN}")
        try:
            plain = _as_integers(array) if array.dtype == _BRAIN else array
            tensor = release(ArrayRecord({name: plain}) if plain is not array else _alone(name, array))[name]
        except (ValueError, TypeError) as error:
            raise Unreadable(f"{where}: {name!r}: {error}") from error
        tensors[name] = tensor.view(torch.bfloat16) if plain is not array else tensor
    return tensors


def write_array(like: Array, tensor: Tensor) -> Array:
    """Return an Array of ``tensor`` with the labels of ``like``, which are empty in the legacy API."""
    if isinstance(like, HeldTensor):
        return HeldTensor(tensor)
    content = tensor.detach().cpu()
    if content.dtype == torch.bfloat16:
        values = content.contiguous().view(torch.int16).numpy().view("V2")
    else:
        values = content.numpy()
    stream = io.BytesIO()
    np.save(stream, values, allow_pickle=False)
    return Array(like.dtype, like.shape, like.stype, stream.getvalue())


def is_buffer(name: str, tensor: Tensor, base: Tensor, named: frozenset[str] | None = None) -> bool:
    """Return whether an array holds statistics or counts, which no transform rewrites.

    ``named`` are the only float buffers if given; else those of BatchNorm are found by name. A counter is
    whole at one end and may be a mean at the other.
    """
    if not (tensor.is_floating_point() and base.is_floating_point()):
        return True
    return name in named if named is not None else name.rsplit(".", 1)[-1] in _STATISTICS


def check_counters(tensors: Mapping[str, Tensor], named: frozenset[str] | None, where: str) -> None:
    """Refuse whole numbers that may be an update: only a single one counts steps."""
    for name, tensor in tensors.items():
        if tensor.is_complex() or tensor.is_quantized:
            raise Unreadable(f"{where}: {name!r} is of type {tensor.dtype}, which no transform takes")
        if not tensor.is_floating_point() and tensor.numel() > 1 and name not in (named or ()):
            raise Unreadable(
                f"{where}: {name!r} holds {tensor.numel()} values of type {tensor.dtype}, which no transform "
                "takes; if they are no update, name them in buffers="
            )


def widened(tensor: Tensor) -> Tensor:
    """Return a tensor in a type in which differences of its values are accurate."""
    return tensor if torch.finfo(tensor.dtype).bits >= _LEAST_BITS else tensor.float()


def _alone(name: str, array: Array) -> ArrayRecord:
    record = ArrayRecord()  # item by item: the constructor would copy the Array
    record[name] = array
    return record


def _as_integers(array: Array) -> Array:
    if isinstance(array, HeldTensor):
        return array
    if _TWO_BYTES not in array.data[:128].replace(b"<V2", b"|V2"):
        raise Unreadable(f"brain floats must have the numpy type V2, got {array.data[:64]!r}")
    data = array.data[:128].replace(b"'<V2'", b"'<i2'").replace(_TWO_BYTES, b"'<i2'") + array.data[128:]
    return Array("int16", array.shape, _PLAIN, data)
