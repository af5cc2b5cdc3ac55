"""Rounding to fewer bits per entry (Zhu et al., NeurIPS 2019, §5.1).

The result keeps the dtype of the update but takes fewer distinct values; the wire
finds the shorter form by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.transforms.settings import check_finite
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import Trace

_LEVELS = 127


def round_fp16() -> Transform:
    """Round every entry to the nearest IEEE half.

    An entry beyond ±65504 becomes ±65504: half precision would make it infinite,
    and one such entry would cost the whole update. Below 2**-14 halves are 2**-24
    apart, so very small entries lose relative precision, and the smallest become 0.
    """
    return _rounded_to("round_fp16", torch.float16)


def round_bf16() -> Transform:
    """Round every entry to the nearest bfloat16; beyond the largest finite one, to that."""
    return _rounded_to("round_bf16", torch.bfloat16)


def round_int8() -> Transform:
    """Round every entry to a whole multiple, from -127 to 127, of its tensor's ``max|g| / 127``.

    Halves go to the even multiple. The scale is at least the smallest normal
    number, so that a tensor of zeros stays one and no scale is 0.
    """
    return stateless(
        lambda update, ctx: {name: _to_multiples(tensor) for name, tensor in update.items()},
        traces=(Trace(zeros_sent=True),),
    )


def _rounded_to(who: str, short: torch.dtype) -> Transform:
    limit = torch.finfo(short).max

    def rounded(tensor: Tensor) -> Tensor:
        check_finite(who, tensor)
        return tensor.to(short).clamp(-limit, limit).to(tensor.dtype)

    return stateless(
        lambda update, ctx: {name: rounded(tensor) for name, tensor in update.items()},
        traces=(Trace(zeros_sent=True),),
    )


def _to_multiples(tensor: Tensor) -> Tensor:
    check_finite("round_int8", tensor)
    if tensor.numel() == 0:
        return tensor
    scale = (tensor.abs().amax() / _LEVELS).clamp(min=torch.finfo(tensor.dtype).tiny)
    # + 0.0 turns -0.0 into 0.0: the sign of a rounded-away entry would leak, and cost a bit
    return torch.round(tensor / scale) * scale + 0.0
