"""A run's folder belongs to one process at a time, from before its first file until after its last."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fl_app.adversary.sightings import FOLDER as SIGHTINGS
from fl_app.config.compose import ConfigError
from fl_app.report import BASELINE
from fl_app.results import RESULT
from fl_app.storage.tree_file import sync

CHECKPOINT, STATE = "checkpoint", "state"
MODEL = "model.safetensors"
_LOCK = ".lock"
_FILES = (RESULT, "config.yaml", "run.log", MODEL, "coordinates.safetensors", "report.html")
_FOLDERS = (SIGHTINGS, "attacks")
_DRAFTS = ("*.part", ".tmp*")
"""Names of files that are being written: ours, and those of safetensors."""


class Claim:
    """The right to write into a run's folder, until it is closed or the process ends."""

    def __init__(self, path: Path, handle: int) -> None:
        self._path, self._handle = path, handle

    def close(self) -> None:
        """Leave the folder to others."""
        for _ in range(2):  # a disk may fail once
            with suppress(OSError):  # or be read-only by now: the lock ends with the handle
                self._path.unlink(missing_ok=True)
        with suppress(OSError):
            os.close(self._handle)
        self._handle = -1

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def claim(folder: Path) -> Claim:
    """Keep other processes from working on the run in ``folder``."""
    path = folder / _LOCK
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            # not a file with a name in it: in a container the same server comes back under another name
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            # not "from" it: its number is that of a machine which can start no more processes
            raise ConfigError(f"{folder}: another process is at work on this run") from None
        except OSError:
            os.close(handle)
            raise
        if _is_at(handle, path):
            return Claim(path, handle)
        os.close(handle)  # its owner removed the file after it was opened here: the lock is of no use


def clear(folder: Path) -> None:
    """Remove what an earlier run left in a claimed folder, so that nothing of it passes for the new run's.

    Its result goes first: without one, no remainder can be taken for a finished run.
    """
    _remove(folder / RESULT)
    sync(folder)
    if (folder / BASELINE).is_dir():
        with claim(folder / BASELINE):
            clear(folder / BASELINE)
    remove_checkpoint(folder)
    for name in (*_FILES, *_FOLDERS):
        _remove(folder / name)
    for path in [path for pattern in ("*.png", *_DRAFTS) for path in folder.glob(pattern)]:
        _remove(path)


def remove_drafts(folder: Path) -> None:
    """Remove the half files of a run that was killed in a claimed folder."""
    for where in (folder, folder / SIGHTINGS):
        for path in [path for pattern in _DRAFTS for path in where.glob(pattern)]:
            _remove(path)


def refuse_folders(folder: Path) -> None:
    """Refuse a run's folder in which a folder stands in the place of a file that the run will write."""
    for path in (*(folder / name for name in _FILES), *folder.rglob("*.part")):
        if path.is_dir():
            raise ConfigError(f"resume: {path}: expected a file, got a folder; nothing was changed")


def remove_checkpoint(folder: Path) -> None:
    """Remove a checkpoint; its state first, without which no remainder can be taken for one."""
    where = folder / CHECKPOINT
    if not where.is_dir():
        return
    _remove(where / STATE)
    sync(where)
    shutil.rmtree(where)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if there is one; of a link, the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_at(handle: int, path: Path) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    mine = os.fstat(handle)
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
