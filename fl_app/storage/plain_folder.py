"""Folders: a check of untrusted ones, with no links, pipes or devices in them, and the end of empty ones."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


class StrangeEntry(ValueError):
    """An entry of a folder that is neither a file nor a folder."""


def refuse_links(folder: Path) -> None:
    """Refuse a folder with a link, a pipe or a device at any depth: access would lead elsewhere or block."""
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif not entry.is_file(follow_symlinks=False):
                    raise StrangeEntry(
                        f"{entry.path}: expected a file or a folder, got a link, pipe or device"
                    )


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that was made for work which never began."""
    with suppress(OSError):
        folder.rmdir()
