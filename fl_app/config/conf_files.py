"""Keys and values of the files in ``conf/``, against which configs from elsewhere are checked."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue

from fl_app.config.compose import CONF_DIR, CONFIG_NAME
from fl_app.config.entries import Entry, entries_of, package_in
from fl_app.config.true_names import TARGET


@lru_cache(maxsize=1)
def targets() -> dict[str, frozenset[str]]:
    """Return the callables that files of ``conf/`` name, by the first part of their key."""
    found: dict[str, set[str]] = {}
    for entry in _entries():
        if entry.path[-1] == TARGET and entry.value != "???" and "${" not in entry.value:
            found.setdefault(entry.path[0], set()).add(entry.value)
    return {group: frozenset(names) for group, names in found.items()}


def values(key: str) -> list[Any]:
    """Return the values at ``key`` in the files of ``conf/``, resolved in this process's environment."""
    found = []
    for entry in _entries():
        if entry.key == key:
            try:
                found.append(OmegaConf.create({"value": entry.value}).value)
            except MissingMandatoryValue:  # it has no default
                continue
    return found


def known_key(key: str) -> bool:
    """Say whether some file of ``conf/`` has a key."""
    return any(entry.key == key for entry in _entries())


@lru_cache(maxsize=64)
def keys_of_choice(group: str, name: str) -> tuple[tuple[str, ...], ...]:
    """Return the keys that the file of a group's choice sets."""
    file = CONF_DIR / group / f"{name}.yaml"
    content = OmegaConf.to_container(OmegaConf.load(file))
    return tuple(
        entry.path for entry in entries_of(content, package_of(file)) if entry.path[-1] != "defaults"
    )


@lru_cache(maxsize=1)
def _entries() -> tuple[Entry, ...]:
    return tuple(
        entry
        for file in sorted(CONF_DIR.rglob("*.yaml"))
        for entry in entries_of(OmegaConf.to_container(OmegaConf.load(file)), package_of(file))
    )


def package_of(file: Path) -> tuple[str, ...]:
    """Return the keys below which a file of ``conf/`` is placed in the whole config."""
    return () if file == CONF_DIR / f"{CONFIG_NAME}.yaml" else package_in(CONF_DIR, file)
