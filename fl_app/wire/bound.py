"""Lower bound on the size of an update under a simple model of its entries."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fl_app.wire.carriers import as_brain, as_half, as_single, find_table
from fl_app.wire.patterns import Array, Format, format_of, patterns_of
from fl_app.wire.values import fold_sign

_EXPONENT_BITS = {torch.float16: 5, torch.bfloat16: 8, torch.float32: 8, torch.float64: 11}


def entropy_bound(update: Mapping[str, Tensor], *, within: Mapping[str, Tensor] | None = None) -> float:
    """Return the size in bytes of an ideal code that knows each tensor's statistics but not its order.

    Summed over tensors, with n entries (those of the mask, if ``within`` has one), k of them not zero:

    - positions: ``log2 C(n, k)`` bits, as if all sets of k positions were equally likely;
    - values: the cheaper of two models. *Symbols*, if there are at most 256 distinct values: k times their
      empirical entropy, and each distinct value once in full (without it, a tensor of 200 different floats
      would cost eight bits per value). *Numbers*: an integer costs the empirical entropy of its bit
      length, and the bits after the leading one; a float costs the empirical entropy of its exponent, and
      sign and mantissa in full, in the shortest float format (float64, float32, float16, bfloat16) that
      holds every value of the tensor exactly.

    The frequencies of lengths, exponents and symbols, the names and the shapes count as known. An update
    whose positions or mantissas are less random than this model assumes can be coded below the bound.
    """
    bits = 0.0
    for name, tensor in update.items():
        fmt = format_of(name, tensor)
        patterns = patterns_of(tensor, fmt)
        if within is not None and name in within:
            patterns = patterns[within[name].cpu().reshape(-1).numpy()]
        values = patterns[patterns != 0]
        bits += _log2_binomial(patterns.size, values.size) + (_value_bits(values, fmt) if values.size else 0)
    return bits / 8


def change_bound(
    new: Mapping[str, Tensor], old: Mapping[str, Tensor], *, within: Mapping[str, Tensor] | None = None
) -> float:
    """Return `entropy_bound` of the XOR that `encode_change` writes, its words read as integers."""
    words = {torch.float64: torch.int64, torch.float32: torch.int32}
    change = {}
    for name, tensor in new.items():
        word = words.get(tensor.dtype, torch.int16)
        change[name] = tensor.view(word) ^ old[name].view(word)
    return entropy_bound(change, within=within)


def _log2_binomial(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def _value_bits(values: Array, fmt: Format) -> float:
    numbers = _float_bits(values, fmt.dtype) if fmt.family == "float" else _integer_bits(values, fmt)
    found = find_table(values)
    if found is None:
        return numbers
    table, symbols = found
    return min(numbers, _entropy_bits(symbols) + 8 * table.nbytes)


def _integer_bits(values: Array, fmt: Format) -> float:
    words = fold_sign(values, fmt.family)
    lengths = np.zeros(words.size, np.uint8)
    for bit in range(words.itemsize * 8):
        lengths += words >> bit != 0
    return _entropy_bits(lengths) + float((lengths - 1.0).sum())


def _float_bits(values: Array, dtype: torch.dtype) -> float:
    return min(
        _entropy_bits(_exponents(form, short)) + form.size * (8 * form.itemsize - _EXPONENT_BITS[short])
        for form, short in _float_forms(values, dtype)
    )


def _entropy_bits(symbols: Array) -> float:
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / symbols.size)).sum())


def _float_forms(values: Array, dtype: torch.dtype) -> list[tuple[Array, torch.dtype]]:
    forms = [(values, dtype)]
    single = values if dtype == torch.float32 else as_single(values) if dtype == torch.float64 else None
    if single is None:
        return forms
    shorter = ((single, torch.float32), (as_half(single), torch.float16), (as_brain(single), torch.bfloat16))
    return forms + [(short, to) for short, to in shorter if short is not None]


def _exponents(values: Array, dtype: torch.dtype) -> Array:
    return ((values << 1) >> (8 * values.itemsize - _EXPONENT_BITS[dtype])).astype(np.int64)
