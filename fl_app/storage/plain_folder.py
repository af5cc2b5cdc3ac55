"""Check of untrusted folders: only files and folders in them, no links, pipes or devices."""

from __future__ import annotations

import os
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
