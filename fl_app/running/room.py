"""Bound on the disk space of run folders, which an operator sets for a server that runs for years."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from fl_app.config.compose import ConfigError
from fl_app.report import BASELINE
from fl_app.results import RESULT
from fl_app.running.ownership import claim
from fl_app.running.result import RUNS, find_run

logger = logging.getLogger(__name__)

MOST = "FL_APP_RUNS_MEGABYTES"
"""Environment variable, not a setting of a run: nobody who starts runs may delete those of others."""


def make_room(root: Path = Path(RUNS)) -> list[Path]:
    """Delete the oldest finished runs below ``root`` until all take at most the allowed space; return them.

    Runs that are at work, were interrupted or failed stay: somebody may resume them.
    """
    most = _allowed()
    if most is None:
        return []
    runs = {path.parent: path.stat().st_mtime for path in root.rglob(RESULT) if path.parent.name != BASELINE}
    sizes = {folder: _size(folder) for folder in runs}
    gone: list[Path] = []
    for folder in sorted(runs, key=runs.__getitem__):
        if sum(sizes.values()) <= most:
            break
        run = find_run(folder)
        if run is None or run.status != "finished":
            continue
        try:
            with claim(folder):
                shutil.rmtree(folder)
        except (ConfigError, OSError) as error:
            logger.warning("%s is kept: %s", folder, error)
            continue
        logger.warning("removed %s: run folders may take %s megabytes (%s)", folder, os.environ[MOST], MOST)
        del sizes[folder]
        gone.append(folder)
    return gone


def _allowed() -> float | None:
    text = os.environ.get(MOST, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise ConfigError(f"{MOST}: expected a number of megabytes above 0, got {text!r}")
    return value * 2**20


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
