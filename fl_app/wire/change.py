"""Weight changes as bytes that restore the new weights bit for bit.

A change is the XOR of the bit patterns: zero where nothing changed, and never rounded,
unlike a difference of floats.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fl_app.types import Update
from fl_app.wire.masks import Known, Masks
from fl_app.wire.packing import pack, unpack
from fl_app.wire.patterns import Array, patterns_of, tensor_of


def encode_change(
    new: Mapping[str, Tensor], old: Mapping[str, Tensor], *, within: Masks | None = None
) -> bytes:
    """Encode the change from ``old`` to ``new``; ``within``: positions known to both ends, as in `encode`."""
    if new.keys() != old.keys():
        raise ValueError(f"encode_change: only one of new and old has {sorted(new.keys() ^ old.keys())}")
    for name in new:
        ours, theirs = _describe(old[name]), _describe(new[name])
        if ours != theirs:
            raise ValueError(f"encode_change: tensor {name!r}: old is {ours}, new is {theirs}")
    known = Known(old, within)
    before, after = _patterns(old, known), _patterns(new, known)
    change = {name: known.restrict("encode_change", name, before[name] ^ after[name]) for name in before}
    return pack("change", known.entries, change, _shared(before, known))


def apply_change(old: Mapping[str, Tensor], blob: bytes, *, within: Masks | None = None) -> Update:
    """Return the new weights; raise `CodecError` unless ``blob`` was made from exactly these old ones."""
    known = Known(old, within)
    before = _patterns(old, known)
    change = unpack("change", blob, known.entries, _shared(before, known))
    return {
        name: tensor_of(before[name] ^ known.expand(name, change[name]), tensor)
        for name, tensor in old.items()
    }


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _patterns(tensors: Mapping[str, Tensor], known: Known) -> dict[str, Array]:
    return {name: patterns_of(tensor, known.entries[name].format) for name, tensor in tensors.items()}


def _shared(patterns: Mapping[str, Array], known: Known) -> list[Array]:
    return [patterns[name] for name in sorted(patterns)] + known.shared()
