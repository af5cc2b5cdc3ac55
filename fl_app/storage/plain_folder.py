"""Folders: a check of untrusted ones, with no links, pipes or devices in them, and the end of empty ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 1 << 26
"""Largest file that is read as a whole: a text or a picture, not a model."""

MOST_DEPTH = 64


class StrangeEntry(ValueError):
    """An entry that is neither a file nor a folder, or is too large or too deep to be part of a run."""


def read_small(path: Path) -> bytes:
    """Return the content of a file; `StrangeEntry` if it has more than `MOST_BYTES`."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise StrangeEntry(f"{path}: expected at most {MOST_BYTES} bytes")
    return content


def entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield all entries of a folder and of those in it; links are not followed. Too deep: `StrangeEntry`."""
    waiting = [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        if depth > MOST_DEPTH:
            raise StrangeEntry(f"{folder}: expected at most {MOST_DEPTH} folders within each other")
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
                yield entry


def entries_named(folder: Path, name: str) -> list[Path]:
    """Return the entries of a name at any depth below a folder; none if it is no folder."""
    return (
        [Path(entry.path) for entry in entries_below(folder) if entry.name == name] if folder.is_dir() else []
    )


def refuse_links(folder: Path) -> None:
    """Refuse a folder with a link, a pipe or a device at any depth: access would lead elsewhere or block."""
    for entry in entries_below(folder):
        if not (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)):
            raise StrangeEntry(f"{entry.path}: expected a file or a folder, got a link, pipe or device")


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that was made for work which never began."""
    with suppress(OSError):
        folder.rmdir()
