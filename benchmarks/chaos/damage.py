"""Damage to one file of a killed run, as a bad disk, a careless copy or a person does it."""

from __future__ import annotations

import hashlib
import random
import shutil
from pathlib import Path

WAYS = ("a bit flipped", "cut off", "zeros", "emptied", "removed", "a folder in its place", "of another run")


def spoil(folder: Path, other: Path, way: str, rng: random.Random) -> Path | None:
    """Damage a file below ``folder``; ``other`` is another run. Return it, or None if nothing changed."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    path = rng.choice(files)
    content = path.read_bytes()
    if way == "removed":
        path.unlink()
        return path
    if way == "a folder in its place":
        path.unlink()
        path.mkdir()
        return path
    if way == "of another run":
        same = other / path.relative_to(folder)
        if not same.is_file():
            return None
        shutil.copyfile(same, path)
    elif not content:
        return None
    elif way == "a bit flipped":
        at = rng.randrange(len(content))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
    elif way == "zeros":
        at = rng.randrange(len(content))
        path.write_bytes(content[:at] + bytes(min(512, len(content) - at)) + content[at + 512 :])
    else:
        path.write_bytes(content[: rng.randrange(len(content))] if way == "cut off" else b"")
    return None if path.read_bytes() == content else path


def contents(folder: Path) -> dict[str, str]:
    """Return a hash of every file below ``folder``, and the names of folders."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
    }
