"""Encoding of an update as bytes, and decoding."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fl_app.types import Update
from fl_app.wire.drawn import Drawn
from fl_app.wire.masks import Known, Masks
from fl_app.wire.packing import pack, unpack
from fl_app.wire.patterns import patterns_of, tensor_of


def encode(update: Mapping[str, Tensor], *, within: Masks | None = None, drawn: Drawn | None = None) -> bytes:
    """Encode ``update`` as bytes that `decode` restores bit for bit.

    ``within`` holds boolean masks of the positions that both ends know; a tensor
    without a mask may be non-zero anywhere. Entries outside a mask must be zero. The mask
    itself is not sent. ``drawn`` says where random positions came from: of a tensor that is non-zero
    exactly there, the seed travels in place of the positions, and `decode` needs nothing more.
    """
    known = Known(update, within)
    patterns = {
        name: known.restrict("encode", name, patterns_of(tensor, known.entries[name].format))
        for name, tensor in update.items()
    }
    return pack("update", known.entries, patterns, known.shared(), drawn)


def decode(blob: bytes, like: Mapping[str, Tensor], *, within: Masks | None = None) -> Update:
    """Decode an update with the names, shapes, dtypes and device of ``like``, whose values are not used.

    Raises `CodecError` for anything that is not a valid blob for ``like`` and ``within``.
    """
    known = Known(like, within)
    patterns = unpack("update", blob, known.entries, known.shared())
    return {name: tensor_of(known.expand(name, patterns[name]), tensor) for name, tensor in like.items()}


def decode_masks(blob: bytes, like: Mapping[str, Tensor]) -> Update:
    """Read boolean masks of the names, shapes and device of ``like``."""
    return decode(blob, {name: torch.empty_like(t, dtype=torch.bool) for name, t in like.items()})
