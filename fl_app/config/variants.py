"""Overrides of runs beside a run: the same without its defense, and the models that its attacker trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from fl_app.config.build import baseline_of, share_moved_most
from fl_app.config.compose import has_key, key_of, parse_overrides, quote

_OF_THIS_RUN = ("attack", "run_dir", "resume")
_PROTECTION = ("defense", "dp", "secagg")
_OF_THE_SERVER = ("seed", "init", "liars", "aggregate", "baseline", "checkpoint", "secagg")
_PLAIN = ["dp=none", "secagg=off", "attack=none"]


def undefended(overrides: Sequence[str], cfg: DictConfig) -> list[str]:
    """Return the same job without its defense and without an attack."""
    kept = _without(overrides, (*_PROTECTION, *_OF_THIS_RUN))
    baseline = baseline_of(cfg)
    off = [f"defense={baseline}", *_PLAIN]
    if baseline != "none":  # so that both runs send the same number of weights
        off.append(f"audit.moved_most={share_moved_most(cfg)}")
    return [*_that_fit(kept, off), *off]


def shadow(
    overrides: Sequence[str], cfg: DictConfig, *, defended: bool, seed: int, pool: Path, init: Path | None
) -> list[str]:
    """Return the training of a model on the samples in ``pool``, in the settings of the run.

    ``defended``: with its defense. Secure aggregation hides single updates and leaves the model as it is.
    """
    if defended:
        kept = _without(overrides, (*_OF_THIS_RUN, *_OF_THE_SERVER))
        off = ["secagg=off", "attack=none"]
    else:
        kept, off = _without(undefended(overrides, cfg), _OF_THE_SERVER), ["secagg=off"]
    place = [f"audit.pool={quote(pool)}", f"seed={seed}"]
    place += [] if init is None else [f"init={quote(init)}"]
    return [*kept, *off, "liars=0", "aggregate=mean", "baseline=false", "checkpoint=false", *place]


def _without(overrides: Sequence[str], keys: Sequence[str]) -> list[str]:
    return [o for o in overrides if key_of(o).split(".")[0] not in keys]


def _that_fit(kept: list[str], off: list[str]) -> list[str]:
    """Drop strategy settings that belong to the strategy that the defense selected."""
    tuned = [o for o in parse_overrides(kept) if o.key_or_group.startswith("strategy.") and not o.is_add()]
    gone = {o.input_line for o in tuned if not has_key([*kept, *off], o.key_or_group)}
    return [o for o in kept if o not in gone]
