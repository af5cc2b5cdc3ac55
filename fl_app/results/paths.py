"""Paths that rows name, below the folder that they lie in."""

from __future__ import annotations

from pathlib import Path


def inside(folder: Path, name: str | None) -> Path | None:
    """Return a path in ``folder``; None if it is no path or leads out of the folder."""
    # a result file must not be able to pull other pictures of this machine into a page that gets passed on
    if not name or "\0" in name:
        return None
    path = (folder / name).resolve()
    return path if path.is_relative_to(folder.resolve()) else None
