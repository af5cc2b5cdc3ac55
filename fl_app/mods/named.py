"""Mods by name: one line in any ClientApp for each defense that rewrites an update."""

from __future__ import annotations

from typing import TypedDict, Unpack

from fl_app.mods.records import Returns
from fl_app.mods.transform_mod import TransformMod, transform_mod
from fl_app.transforms import (
    Transform,
    add_gaussian,
    add_laplace,
    clip_and_noise,
    drop_smallest,
    error_feedback,
    identity,
    keep_topk,
    perturb_outpost,
    prune_dual,
    round_bf16,
    round_fp16,
    round_int8,
    take_sign,
)

_ROUNDINGS = {"int8": round_int8, "fp16": round_fp16, "bf16": round_bf16}


class ModOptions(TypedDict, total=False):
    """Options of every mod, as in `transform_mod`."""

    returns: Returns
    buffers: tuple[str, ...] | list[str] | None
    send_buffers: bool | None
    packed: bool
    seed: int | None


def _mod(name: str, transform: Transform, options: ModOptions) -> TransformMod:
    return transform_mod(transform, name=name, **options)


def _pruning(name: str, transform: Transform, feedback: bool, options: ModOptions) -> TransformMod:
    return _mod(name, error_feedback(transform, enabled=feedback), options)


def none_mod(**options: Unpack[ModOptions]) -> TransformMod:
    """Send the update unchanged; with ``packed=True``, as short as lossless coding makes it."""
    return _mod("none_mod", identity(), options)


def topk_mod(k: float = 0.2, *, error_feedback: bool = True, **options: Unpack[ModOptions]) -> TransformMod:
    """Send the largest share ``k`` of every layer."""
    return _pruning("topk_mod", keep_topk(k), error_feedback, options)


def dgp_mod(
    k1: float = 0.05,
    k2: float = 0.75,
    *,
    min_size: int = 4,
    error_feedback: bool = True,
    **options: Unpack[ModOptions],
) -> TransformMod:
    """Withhold the largest ``k1`` and the smallest ``k2`` of every layer."""
    return _pruning("dgp_mod", prune_dual(k1, k2, min_size), error_feedback, options)


def prune_mod(
    rate: float = 0.3, *, error_feedback: bool = True, **options: Unpack[ModOptions]
) -> TransformMod:
    """Withhold the smallest ``rate`` of every layer."""
    return _pruning("prune_mod", drop_smallest(rate), error_feedback, options)


def noise_mod(std: float = 0.01, **options: Unpack[ModOptions]) -> TransformMod:
    """Add normal noise of standard deviation ``std`` to every entry; nothing is clipped, so no ε holds."""
    return _mod("noise_mod", add_gaussian(std), options)


def laplace_mod(std: float = 0.1, **options: Unpack[ModOptions]) -> TransformMod:
    """Add Laplace noise of standard deviation ``std`` to every entry."""
    return _mod("laplace_mod", add_laplace(std), options)


def sign_mod(scale: bool = True, **options: Unpack[ModOptions]) -> TransformMod:
    """Send the sign of every entry, times the layer's mean magnitude if ``scale``."""
    return _mod("sign_mod", take_sign(scale), options)


def quantise_mod(to: str = "int8", **options: Unpack[ModOptions]) -> TransformMod:
    """Round every entry to ``int8`` levels, ``fp16`` or ``bf16``; the arrays keep their type."""
    if to not in _ROUNDINGS:
        raise ValueError(f"quantise_mod: to must be one of {list(_ROUNDINGS)}, got {to!r}")
    return _mod("quantise_mod", _ROUNDINGS[to](), options)


def clip_and_noise_mod(clip: float, std: float, **options: Unpack[ModOptions]) -> TransformMod:
    """Scale the update to a norm of at most ``clip`` and add normal noise of standard deviation ``std``.

    The mod releases a vector with noise multiplier ``std / clip`` each round; it computes no epsilon.
    """
    return _mod("clip_and_noise_mod", clip_and_noise(clip, std), options)


def outpost_mod(
    prune: float = 0.8,
    noise: float = 0.8,
    noisy: float = 0.4,
    beta: float = 0.125,
    *,
    error_feedback: bool = True,
    **options: Unpack[ModOptions],
) -> TransformMod:
    """Prune and add noise by risk, less often in later rounds."""
    return _pruning("outpost_mod", perturb_outpost(prune, noise, noisy, beta), error_feedback, options)
