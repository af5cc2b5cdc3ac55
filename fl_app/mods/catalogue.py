"""Catalogue of mods: the names of `conf/defense`, each with the settings that stand there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

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
from fl_app.mods.transform_mod import TransformMod

MODS: Mapping[str, Callable[..., TransformMod]] = {
    "none": none_mod,
    "topk": topk_mod,
    "dgp": dgp_mod,
    "prune": prune_mod,
    "graddrop": partial(prune_mod, rate=0.5),
    "gaussian": noise_mod,
    "laplace": laplace_mod,
    "sign": sign_mod,
    "int8": partial(quantise_mod, to="int8"),
    "fp16": partial(quantise_mod, to="fp16"),
    "bf16": partial(quantise_mod, to="bf16"),
    "outpost": outpost_mod,
    "clip_and_noise": clip_and_noise_mod,
    "common_signs": common_signs_mod,
    "forgetful": forgetful_mod,
    "low_rank": low_rank_mod,
    "noisy_support": noisy_support_mod,
    "accumulate": accumulate_mod,
    "warm_start": warm_start_mod,
}
"""Mods by name; ``clip_and_noise`` needs ``clip`` and ``std``, all others have defaults."""

NO_MOD: Mapping[str, str] = {
    "adgp": "needs positions that strategy ADGP sends",
    "soteria": "changes the computation of the gradient: apply it inside of the app's training",
    "ats": "changes the training samples: apply it inside of the app's training",
    "censor": "tries steps on the model: apply it inside of the app's training",
    "concealed": "searches for images: apply it inside of the app's training",
    "precode": "changes the model: build it into the app's model",
    "dp_sgd": "clips each sample's gradient: use Opacus inside of the app's training",
    "fl_top": "sends a vector that its own strategy reads: use fl_app.client.app",
    "fl_basic": "sends a vector that its own strategy reads: use fl_app.client.app",
    "fl_cs": "sends a vector that its own strategy reads: use fl_app.client.app",
    "secure_signs": "sends a vector that its own strategy reads: use fl_app.client.app",
    "fl_std": "sends a vector that its own strategy reads: use fl_app.client.app",
}
"""Defenses that no mod can put around an app, with the reason."""


def mod_named(name: str, **settings: object) -> TransformMod:
    """Return the mod of a defense by its name; raise a ValueError that says what there is."""
    if name in NO_MOD:
        raise ValueError(f"no mod does {name}: it {NO_MOD[name]}")
    if name not in MODS:
        raise ValueError(f"expected one of the mods {list(MODS)}, got {name!r}")
    try:
        return MODS[name](**settings)
    except TypeError as error:
        raise ValueError(f"mod {name}: {error}") from error
