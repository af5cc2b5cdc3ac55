"""Keys and values of the files in ``conf/``, against which configs from elsewhere are checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue

from fl_app.config.compose import CONF_DIR, CONFIG_NAME
from fl_app.config.true_names import TARGET

_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)


class Entry(NamedTuple):
    """One key of a config with its value."""

    path: tuple[str, ...]
    value: Any

    @property
    def key(self) -> str:
        """The path as an override has it."""
        return ".".join(self.path)


def entries_of(node: Any, path: tuple[str, ...] = ()) -> Iterator[Entry]:
    """Go through all keys of a config, those of branches and within lists among them."""
    named = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, value in named:
        here = (*path, str(name))
        yield Entry(here, value)
        yield from entries_of(value, here)


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
    """Return the keys below which a file's content is placed in the whole config."""
    said = _PACKAGE.search(file.read_text())
    if file == CONF_DIR / f"{CONFIG_NAME}.yaml" or (said and said[1] == "_global_"):
        return ()
    return tuple(said[1].split(".")) if said else file.parent.relative_to(CONF_DIR).parts
