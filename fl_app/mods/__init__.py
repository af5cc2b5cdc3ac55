"""Flower mods that defend the updates of any ClientApp, in one line."""

from fl_app.mods.arrays import Unreadable
from fl_app.mods.catalogue import MODS, NO_MOD, mod_named
from fl_app.mods.named import (
    accumulate_mod,
    clip_and_noise_mod,
    common_signs_mod,
    dgp_mod,
    forgetful_mod,
    laplace_mod,
    low_rank_mod,
    noise_mod,
    noisy_support_mod,
    none_mod,
    outpost_mod,
    prune_mod,
    quantise_mod,
    sign_mod,
    topk_mod,
    warm_start_mod,
)
from fl_app.mods.secure import SecureMod, secure_mod
from fl_app.mods.transform_mod import TransformMod, transform_mod

__all__ = [
    "MODS",
    "NO_MOD",
    "SecureMod",
    "TransformMod",
    "Unreadable",
    "accumulate_mod",
    "clip_and_noise_mod",
    "common_signs_mod",
    "dgp_mod",
    "forgetful_mod",
    "laplace_mod",
    "low_rank_mod",
    "mod_named",
    "noise_mod",
    "noisy_support_mod",
    "none_mod",
    "outpost_mod",
    "prune_mod",
    "quantise_mod",
    "secure_mod",
    "sign_mod",
    "topk_mod",
    "transform_mod",
    "warm_start_mod",
]
