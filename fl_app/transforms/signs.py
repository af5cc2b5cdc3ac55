"""Sign-SGD: send only the sign of every entry (Bernstein et al., ICML 2018)."""

from __future__ import annotations

from torch import Tensor

from fl_app.transforms.settings import check_finite
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import Trace


def take_sign(scale: bool = True) -> Transform:
    """Send ``sign(g) * mean|g|`` of every tensor, or the plain sign without ``scale``.

    Zeros stay 0, so a tensor's entries are 0 or plus or minus one magnitude.
    """
    if not isinstance(scale, bool):
        raise ValueError(f"take_sign: scale must be true or false, got {scale!r}")

    def signs(tensor: Tensor) -> Tensor:
        check_finite("take_sign", tensor)
        return tensor.sign() * tensor.abs().mean() if scale else tensor.sign()

    return stateless(
        lambda update, ctx: {name: signs(tensor) for name, tensor in update.items()},
        traces=(Trace(zeros_sent=True, signs=True),),
    )
