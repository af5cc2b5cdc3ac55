"""Settings that follow another one: the file of a choice writes them as a reference, and nothing else may.

A setting of which several parts need the value has one owner. ``training.batch_size: ${batch_size}`` says
that ``batch_size`` is it: whoever could set the two apart would train with one and count with the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fl_app.config.entries import Entry, entries_of, package_in
from fl_app.config.true_names import TARGET

REFERENCE = re.compile(r"^\$\{(?:oc\.select:)?([\w.]+)(?:,[^}]*)?\}$")
"""A value that is another setting's, or a default where there is none."""


def find_set_apart(config: Mapping[str, Any], files: Iterable[tuple[Path, Path]]) -> str | None:
    """Return what is wrong with an unresolved config that changes a reference of a chosen file.

    ``files``: those of the choices, each with the folder of its group's folder. A reference counts as long
    as the callable that takes it is the file's.
    """
    for folder, file in files:
        for entry, target in _references(folder, file):
            taker = _at(config, entry.path[:-1])
            if not isinstance(taker, Mapping) or taker.get(TARGET) != target:
                continue
            if taker.get(entry.path[-1]) != entry.value:
                (owner,) = REFERENCE.findall(entry.value)
                return f"{entry.key}: follows {owner}: set {owner} instead"
    return None


@lru_cache(maxsize=256)
def _references(folder: Path, file: Path) -> tuple[tuple[Entry, str | None], ...]:
    """Return the references in a file, each with the callable that takes it."""
    content = OmegaConf.to_container(OmegaConf.load(file))
    found = {entry.path: entry.value for entry in entries_of(content, package_in(folder, file))}
    return tuple(
        (Entry(path, value), found.get((*path[:-1], TARGET)))
        for path, value in found.items()
        if isinstance(value, str) and REFERENCE.match(value)
    )


def _at(config: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        config = config.get(name) if isinstance(config, Mapping) else None
    return config
