"""Mods by name: one line in any ClientApp for each defense that rewrites an update."""

from __future__ import annotations

from typing import TypedDict, Unpack

from fl_app.mods.records import Returns
from fl_app.mods.transform_mod import TransformMod, transform_mod
from fl_app.transforms import (
    Transform,
    accumulate,
    add_gaussian,
    add_laplace,
    clip_and_noise,
    clip_and_noise_on_support,
    drop_smallest,
    error_feedback,
    identity,
    keep_rank,
    keep_topk,
    perturb_outpost,
    prune_dual,
    round_bf16,
    round_fp16,
    round_int8,
    send_common_signs,
    skip_first,
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


def _with_feedback(transform: Transform, enabled: bool, decay: float, jump: float | None) -> Transform:
    return error_feedback(transform, enabled=enabled, decay=decay, jump=jump)


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


def common_signs_mod(
    first: float = 1.0,
    hidden: float = 0.05,
    output: float = 0.3,
    biases: float = 1.0,
    positions_seed: int = 0,
    flip: float = 0.0,
    magnitude: float | None = None,
    *,
    error_feedback: bool = True,
    decay: float = 1.0,
    jump: float | None = None,
    **options: Unpack[ModOptions],
) -> TransformMod:
    """Send one bit for each of a few public random entries; short on the wire with ``packed=True``."""
    signs = send_common_signs(first, hidden, output, biases, positions_seed, flip, magnitude)
    return _mod("common_signs_mod", _with_feedback(signs, error_feedback, decay, jump), options)


def forgetful_mod(
    k1: float = 0.05,
    k2: float = 0.75,
    decay: float = 0.5,
    jump: float | None = 2.0,
    **options: Unpack[ModOptions],
) -> TransformMod:
    """Prune as `dgp_mod`, with error feedback that forgets."""
    return _mod("forgetful_mod", _with_feedback(prune_dual(k1, k2), True, decay, jump), options)


def low_rank_mod(
    energy: float = 0.5,
    most: int | None = 1,
    *,
    error_feedback: bool = True,
    **options: Unpack[ModOptions],
) -> TransformMod:
    """Send the largest singular directions of every layer."""
    return _pruning("low_rank_mod", keep_rank(energy, most), error_feedback, options)


def noisy_support_mod(
    share: float = 0.18,
    clip: float = 1.0,
    std: float = 0.05,
    positions_seed: int = 0,
    **options: Unpack[ModOptions],
) -> TransformMod:
    """Send a public random share of every layer, clipped and with noise."""
    return _mod("noisy_support_mod", clip_and_noise_on_support(share, clip, std, positions_seed), options)


def accumulate_mod(floor: int = 64, **options: Unpack[ModOptions]) -> TransformMod:
    """Send the sum of ``floor`` updates after as many rounds, and nothing in between."""
    return _mod("accumulate_mod", accumulate(floor), options)


def warm_start_mod(rounds: int = 20, **options: Unpack[ModOptions]) -> TransformMod:
    """Send nothing in the first ``rounds`` rounds; begin with weights that were trained on public data."""
    return _mod("warm_start_mod", skip_first(rounds), options)
