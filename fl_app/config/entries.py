"""Entries of a config: every key with its value, and where a file puts its keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

_PACKAGE = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)


class Entry(NamedTuple):
    """One key of a config, whatever stands there."""

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


def package_in(folder: Path, file: Path) -> tuple[str, ...]:
    """Return the keys below which the content of a file of a group, in ``folder``, stands in the config."""
    said = _PACKAGE.search(file.read_text(encoding="utf-8"))
    if said is None:
        return file.parent.relative_to(folder).parts
    return () if said[1] == "_global_" else tuple(said[1].split("."))
