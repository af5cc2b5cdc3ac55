"""Signs on a common random support: one bit for each of a few public random positions.

Signs as in Bernstein et al. (ICML 2018), with the feedback of Karimireddy et al. (ICML 2019); randomised
response as in Warner (1965). What is known of an entry is a single bit, and of most entries nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.privacy.draws import uniform
from fl_app.transforms.settings import check_bound, check_finite
from fl_app.transforms.support import Shares, common_support, positions_in
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import RoundContext, Trace, Update


def send_common_signs(
    first: float = 1.0,
    hidden: float = 0.05,
    output: float = 0.3,
    biases: float = 1.0,
    seed: int = 0,
    flip: float = 0.0,
    magnitude: float | None = None,
) -> Transform:
    """Send the signs of a random share of each layer, times the mean magnitude of these entries.

    ``first``, ``hidden``, ``output`` and ``biases`` are the shares of the first weight, of those in between,
    of the last one and of all vectors. The positions follow from the public ``seed`` and the round; they are
    the same for all clients. The sign of 0 is drawn, or else it would show which units are switched off. With
    ``flip`` each sign is turned round with that chance; with ``magnitude`` every entry has that size, and
    nothing but the bits depends on data.
    """
    shares = Shares(first, hidden, output, biases)
    shares.check("send_common_signs")
    if isinstance(flip, bool) or not 0 <= flip < 0.5:
        raise ValueError(f"send_common_signs: flip must be in [0, 0.5), got {flip!r}")
    if magnitude is not None:
        check_bound("send_common_signs", "magnitude", magnitude)
    support = common_support(shares, seed)

    def rewrite(update: Update, ctx: RoundContext) -> Update:
        drawn = support(update, ctx.round)
        sent = {}
        for name, tensor in update.items():
            check_finite("send_common_signs", tensor)
            where = positions_in(drawn, name, tensor)
            sent[name] = _signs_at(tensor, where, ctx.generator, flip, magnitude)
        return sent

    return stateless(rewrite, traces=(Trace(signs=True),), drawn=support)


def send_signs_at_locations() -> Transform:
    """Send the signs at the positions of the order (``ctx.locations``), as `send_common_signs` does."""

    def rewrite(update: Update, ctx: RoundContext) -> Update:
        if ctx.locations is None:
            raise ValueError("send_signs_at_locations: the order of this round names no locations")
        sent = {}
        for name, tensor in update.items():
            check_finite("send_signs_at_locations", tensor)
            where = ctx.locations[name].reshape(-1).nonzero().flatten().to(tensor.device)
            sent[name] = _signs_at(tensor, where, ctx.generator, 0.0, None)
        return sent

    return stateless(rewrite, traces=(Trace(signs=True),))


def _signs_at(
    tensor: Tensor, where: Tensor, generator: torch.Generator, flip: float, magnitude: float | None
) -> Tensor:
    """Return a tensor of zeros with signs at the positions ``where``."""
    flat = tensor.reshape(-1)
    out, chosen = torch.zeros_like(flat), flat[where]
    if chosen.numel():
        size = chosen.abs().mean() if magnitude is None else chosen.new_tensor(magnitude)
        coins = uniform(2 * chosen.numel(), generator).to(chosen.device).view(2, -1)
        drawn = torch.where(coins[0] < 0.5, -torch.ones_like(chosen), torch.ones_like(chosen))
        exact = torch.where(chosen == 0, drawn, chosen.sign())
        out[where] = torch.where(coins[1] < flip, -exact, exact) * size
    return out.view(tensor.shape)
