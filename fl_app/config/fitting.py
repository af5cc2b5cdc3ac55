"""Checks of a config against what its defense says about itself."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from fl_app.config.compose import ConfigError
from fl_app.defenses import Defense
from fl_app.privacy.cohorts import fixed_count

_OFF = {"dp": "none", "secagg": "off"}


def check_fit(cfg: DictConfig, defense: Defense) -> None:
    """Raise a ConfigError if the defense does not go with the other choices."""
    name = cfg.choices.defense
    for group, off in _OFF.items():
        if cfg.choices[group] != off and defense.scheme is None:
            both = "; dp=both adds noise of records to them" if defense.release is not None else ""
            raise ConfigError(
                f"{group}: {group}={cfg.choices[group]} needs a defense whose clients send one vector and "
                f"keep nothing between rounds{both} (docs/private-training.md), got defense={name}"
            )
    if cfg.secagg.enabled:
        coins = cfg.dp.get("sampling") == "poisson"
        most = cfg.clients if coins else fixed_count(cfg.clients, cfg.fraction)
        if most < cfg.secagg.min_clients:
            raise ConfigError(
                f"secagg.min_clients: no round has more than {most} clients, so none would ever be summed; "
                f"expected at most that, got {cfg.secagg.min_clients}"
            )
    if cfg.choices.dp != _OFF["dp"] and cfg.training.get("steps") is None:
        raise ConfigError(
            f"training.steps: with dp={cfg.choices.dp} it must be a number: the steps of an epoch tell how "
            "many samples there are"
        )
    if defense.votes_first and _attacks_first(cfg):
        raise ConfigError(
            "attack.rounds: in round 1 clients vote on coordinates, and there is no update to attack; got "
            f"{cfg.attack.rounds}"
        )
    if defense.confined and (decay := cfg.training.get("weight_decay")):
        raise ConfigError(
            f"training.weight_decay: must be 0 with defense={name}: it moves what must stay, got {decay}"
        )


def check_samples(cfg: DictConfig, defense: Defense, what: str) -> None:
    """Raise a ConfigError if the defense needs images and the samples are of another kind."""
    if defense.images_only:
        raise ConfigError(f"defense: {cfg.choices.defense} does not work on {what}: take another one")


def _attacks_first(cfg: DictConfig) -> bool:
    rounds: Any = cfg.attack.rounds
    return "_target_" in cfg.attack and (rounds == "all" or (rounds != "last" and 1 in rounds))
