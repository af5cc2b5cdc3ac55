"""An update as bytes, and back."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fl_app.types import Update
from fl_app.wire.packing import Entries, pack, unpack
from fl_app.wire.patterns import Array, format_of, patterns_of, tensor_of

Masks = Mapping[str, Tensor]


def encode(update: Mapping[str, Tensor], *, within: Masks | None = None) -> bytes:
    """Write ``update`` as bytes that `decode` turns back bit for bit.

    ``within`` holds boolean masks of the positions that both ends know; a tensor
    without a mask may be non-zero anywhere. What lies outside of a mask must be zero, and
    nothing of the mask travels.
    """
    known = _flat_masks(update, within)
    entries = _entries(update, known)
    patterns = {}
    for name, tensor in update.items():
        patterns[name] = patterns_of(tensor, entries[name].format)
        if name in known:
            inside = patterns[name][np.flatnonzero(known[name])]
            stray = np.count_nonzero(patterns[name]) - np.count_nonzero(inside)
            if stray:
                raise ValueError(
                    f"encode: tensor {name!r} has {stray} entries outside of within that are not zero"
                )
            patterns[name] = inside
    return pack("update", entries, patterns, _shared(known))


def decode(blob: bytes, like: Mapping[str, Tensor], *, within: Masks | None = None) -> Update:
    """Read an update; names, shapes, dtypes and device are those of ``like``, its values are not used.

    Raises `CodecError` for anything that is not a valid blob for ``like`` and ``within``.
    """
    known = _flat_masks(like, within)
    entries = _entries(like, known)
    patterns = unpack("update", blob, entries, _shared(known))
    for name, mask in known.items():
        whole = np.zeros(mask.size, patterns[name].dtype)
        whole[np.flatnonzero(mask)] = patterns[name]
        patterns[name] = whole
    return {name: tensor_of(patterns[name], tensor) for name, tensor in like.items()}


def _flat_masks(tensors: Mapping[str, Tensor], within: Masks | None) -> dict[str, Array]:
    known = {}
    for name, mask in (within or {}).items():
        if name not in tensors:
            raise ValueError(f"wire: within has a mask for {name!r}, which is no tensor of the update")
        if mask.dtype != torch.bool or mask.shape != tensors[name].shape:
            expected, came = (tuple(t.shape) for t in (tensors[name], mask))
            raise ValueError(
                f"wire: within[{name!r}] must be boolean of shape {expected}, got {mask.dtype} {came}"
            )
        known[name] = mask.detach().cpu().reshape(-1).numpy()
    return known


def _entries(tensors: Mapping[str, Tensor], known: Mapping[str, Array]) -> dict[str, Entries]:
    return {
        name: Entries(
            format=format_of(name, tensor),
            shape=tuple(tensor.shape),
            written=int(np.count_nonzero(known[name])) if name in known else tensor.numel(),
            within=name in known,
        )
        for name, tensor in tensors.items()
    }


def _shared(known: Mapping[str, Array]) -> list[Array]:
    return [np.packbits(known[name]) for name in sorted(known)]
