"""Clipping and noise on a common random support: the Gaussian mechanism at the bytes of a pruned update."""

from __future__ import annotations

import torch

from fl_app.transforms.gaussian_mechanism import clip_to
from fl_app.transforms.noise import with_gaussian
from fl_app.transforms.settings import check_bound, check_share, check_strength
from fl_app.transforms.support import Shares, common_support, positions_in
from fl_app.transforms.transform import Transform, stateless
from fl_app.types import RoundContext, Trace, Update


def clip_and_noise_on_support(share: float, clip: float, std: float, seed: int = 0) -> Transform:
    """Take a public random ``share`` of each layer, clip it to ``clip`` and add noise of ``std`` there alone.

    The positions are public and depend on no data, so the release is that of the Gaussian mechanism with
    noise multiplier ``std / clip``, on fewer entries.
    """
    check_share("clip_and_noise_on_support", "share", share)
    check_bound("clip_and_noise_on_support", "clip", clip)
    check_strength("clip_and_noise_on_support", "std", std)
    shares = Shares(share, share, share, share)
    shares.check("clip_and_noise_on_support")
    support = common_support(shares, seed)

    def rewrite(update: Update, ctx: RoundContext) -> Update:
        drawn = support(update, ctx.round)
        where = {name: positions_in(drawn, name, tensor) for name, tensor in update.items()}
        clipped = clip_to({name: tensor.reshape(-1)[where[name]] for name, tensor in update.items()}, clip)
        sent = {}
        for name, tensor in update.items():
            out = torch.zeros_like(tensor).reshape(-1)
            out[where[name]] = with_gaussian(clipped[name], std, ctx.generator)
            sent[name] = out.view(tensor.shape)
        return sent

    return stateless(rewrite, released=True, traces=(Trace(noise=std),), drawn=support)
