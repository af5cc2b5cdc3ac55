"""Trust in overrides that a process receives. Overrides are untrusted unless the process opts in.

In a simulation the overrides are what its user has typed, and may name anything. In a
deployment they come from whoever started the run: there they name only callables that
``conf/`` names at the same place, read no variable of the environment, and on a client
no file. Which of the two it is cannot be told from the overrides: the engines say so in
the node-config that they give to the apps, and whoever runs a node says it in his.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from fl_app.config.bounds import check_bounds
from fl_app.config.compose import ConfigError, compose, key_of, split_overrides
from fl_app.config.conf_files import targets, values
from fl_app.config.entries import Entry, entries_of
from fl_app.config.fixed import settle
from fl_app.config.literals import WHO, check_length, check_literals
from fl_app.config.true_names import TARGET

TRUST_CONFIG, ALLOW_TARGETS, OWN_OVERRIDES = "trust-config", "allow-targets", "overrides"
"""Keys of a node-config."""
BUILT = ("model", "data", "partition", "defense", "training", "dp", "public", "schedule", "strategy")
"""Keys that name what a run is built of."""
PLACES = ("root", "dataset", "subset", "pieces", "tokenizer", "init", "identities", "download", "pool")
"""Names of settings that make a client read a file, or fetch one."""
_SPECIAL = re.compile(r"_\w+_")


@dataclass(frozen=True)
class Trust:
    """Rights that the operator of this process grants to the overrides of a run."""

    whole: bool = False
    """They are the operator's own: every value is allowed."""
    targets: frozenset[str] = frozenset()
    """Callables that they may name beside those of ``conf/``."""
    own: str = ""
    """Overrides of his own, which take the place of those for the same keys."""


NOBODY = Trust()
"""Trust in overrides from elsewhere."""
WHOLE = Trust(whole=True)
"""Trust in overrides typed on this machine."""


def trust_of(node_config: Mapping[str, Any]) -> Trust:
    """Read the operator's switches (`flwr run` leaves only the environment)."""
    whole = switch(node_config, TRUST_CONFIG, "FL_APP_TRUST_CONFIG")
    listed = str(node_config.get(ALLOW_TARGETS, os.environ.get("FL_APP_ALLOW_TARGETS", "")))
    names = frozenset(name.strip() for name in listed.split(",") if name.strip())
    return Trust(whole, names, str(node_config.get(OWN_OVERRIDES, "")))


def switch(node_config: Mapping[str, Any], key: str, variable: str) -> bool:
    """Read a switch of a node: true or false, and no text that only looks like one of them."""
    value = node_config.get(key, os.environ.get(variable) == "1")
    if not isinstance(value, bool):
        raise ConfigError(f"node-config: {key} must be true or false without quotes, got {value!r}")
    return value


def compose_sent(overrides: str, trust: Trust, *, places: bool, unread: Collection[str] = ()) -> DictConfig:
    """Compose overrides as far as they are trusted.

    ``places``: whether they may name files (a server's). ``unread``: keys of files that nobody will read.
    """
    if not trust.whole:
        check_length(overrides)
    sent, own = split_overrides(overrides), split_overrides(trust.own)
    if not trust.whole:
        check_literals(sent)
    settled = {key_of(override) for override in own}
    cfg = compose(settle(sent, own))
    if not trust.whole:
        _check_whole(cfg)
        check_bounds(cast(dict[str, Any], OmegaConf.to_container(cfg)))
        for entry in entries_of(OmegaConf.to_container(cfg)):
            _check_name(entry, trust)
            if not places and entry.path[-1] in PLACES and entry.key not in {*settled, *unread}:
                _check_place(entry)
    return cfg


def _check_whole(cfg: DictConfig) -> None:
    """Refuse a config from which overrides have removed what a run is built of."""
    for key in BUILT:
        if OmegaConf.select(cfg, f"{key}.{TARGET}") is None:
            raise ConfigError(f"{WHO}: {key} names no callable, and a run cannot do without it")


def _check_name(entry: Entry, trust: Trust) -> None:
    name = entry.path[-1]
    if not _SPECIAL.fullmatch(name):
        return
    if name != TARGET:
        raise ConfigError(f"{WHO}: {entry.key} is not a setting")
    allowed = targets().get(entry.path[0], frozenset()) | trust.targets
    if not isinstance(entry.value, str) or entry.value not in allowed:
        raise ConfigError(
            f"{WHO}: {entry.key} must be one of {', '.join(sorted(allowed))}; got {entry.value!r}. The "
            "operator of this process can allow it: FL_APP_ALLOW_TARGETS, or allow-targets in its node-config"
        )


def _check_place(entry: Entry) -> None:
    if entry.value is None or entry.value in values(entry.key):
        return
    raise ConfigError(
        f"{WHO}: {entry.key} is this node's own affair, got {entry.value!r}. The node's operator can set "
        f"it: overrides='{entry.key}=…' in its node-config"
    )
