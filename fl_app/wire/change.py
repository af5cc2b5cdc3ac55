"""How weights changed, as bytes that restore the new ones bit for bit.

The XOR of the bit patterns: zero where nothing changed, and nothing is rounded,
which no difference of floats can promise.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fl_app.types import Update
from fl_app.wire.packing import Entries, pack, unpack
from fl_app.wire.patterns import Array, format_of, patterns_of, tensor_of


def encode_change(new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> bytes:
    """Write what turns ``old`` into ``new``."""
    if new.keys() != old.keys():
        raise ValueError(f"encode_change: only one of new and old has {sorted(new.keys() ^ old.keys())}")
    for name in new:
        ours, theirs = _describe(old[name]), _describe(new[name])
        if ours != theirs:
            raise ValueError(f"encode_change: tensor {name!r}: old is {ours}, new is {theirs}")
    entries, before = _read(old)
    _, after = _read(new)
    change = {name: before[name] ^ after[name] for name in before}
    return pack("change", entries, change, _shared(before))


def apply_change(old: Mapping[str, Tensor], blob: bytes) -> Update:
    """Return the new weights; raises `CodecError` unless ``blob`` was made from exactly these old ones."""
    entries, before = _read(old)
    change = unpack("change", blob, entries, _shared(before))
    return {name: tensor_of(before[name] ^ change[name], tensor) for name, tensor in old.items()}


def _describe(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _read(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Entries], dict[str, Array]]:
    formats = {name: format_of(name, t) for name, t in tensors.items()}
    entries = {
        name: Entries(formats[name], tuple(t.shape), t.numel(), within=False) for name, t in tensors.items()
    }
    return entries, {name: patterns_of(t, formats[name]) for name, t in tensors.items()}


def _shared(patterns: Mapping[str, Array]) -> list[Array]:
    return [patterns[name] for name in sorted(patterns)]
