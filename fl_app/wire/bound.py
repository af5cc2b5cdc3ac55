"""A yardstick for the wire: how small an update could be under a simple model of its entries."""

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
    """Return the bytes of an ideal code that knows each tensor's statistics and nothing of its order.

    Summed over tensors, with n entries (those of the mask, if ``within`` has one), k of them not zero:

    - positions: ``log2 C(n, k)`` bits, as if all sets of k positions were equally likely;
    - values, at most 256 distinct ones: k times the empirical entropy of the values;
    - values, more than that: an integer costs the empirical entropy of its bit length, and the
      bits after the leading one; a float costs the empirical entropy of its exponent, and sign and mantissa
      in full, all in the shortest float format (float64, float32, float16, bfloat16) that holds every value of
      the tensor exactly.

    Statistics, names and shapes count as known. An update whose positions or mantissas are less random
    than this model says can be coded below the bound.
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


def _log2_binomial(n: int, k: int) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2)


def _value_bits(values: Array, fmt: Format) -> float:
    table = find_table(values)
    if table is not None:
        return _entropy_bits(table[1])
    if fmt.family == "float":
        return min(_float_bits(short, dtype) for short, dtype in _float_forms(values, fmt.dtype))
    words = fold_sign(values, fmt.family)
    lengths = np.zeros(words.size, np.uint8)
    for bit in range(words.itemsize * 8):
        lengths += words >> bit != 0
    return _entropy_bits(lengths) + float((lengths - 1.0).sum())


def _entropy_bits(symbols: Array) -> float:
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / symbols.size)).sum())


def _float_forms(values: Array, dtype: torch.dtype) -> list[tuple[Array, torch.dtype]]:
    forms = [(values, dtype)]
    single = as_single(values) if dtype == torch.float64 else values if dtype == torch.float32 else None
    if single is not None:
        forms += [(single, torch.float32)]
        shorter = ((as_half(single), torch.float16), (as_brain(single), torch.bfloat16))
        forms += [(short, to) for short, to in shorter if short is not None]
    return forms


def _float_bits(values: Array, dtype: torch.dtype) -> float:
    width = values.itemsize * 8
    exponent = _EXPONENT_BITS[dtype]
    exponents = (values << 1) >> (width - exponent)
    return _entropy_bits(exponents.astype(np.int64)) + values.size * (width - exponent)
