"""Find run folders on disk and read them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fl_app.results import RESULT, Run, load_run, read_content
from fl_app.storage.plain_folder import entries_named

BASELINE = "baseline"
"""The folder inside a run's folder that holds the same run without its defense."""


def find_runs(paths: Iterable[Path | str]) -> list[Path]:
    """Return the folders that hold a `result.json`, at any depth below ``paths``, each once.

    Every path must lead to at least one run, and every result must be valid JSON:
    a mistyped folder should not silently drop out of a comparison.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise FileNotFoundError(f"find_runs: expected a run folder, got {path}, which does not exist")
        is_result = path.is_file() and path.name == RESULT
        results = [path] if is_result else sorted(entries_named(path, RESULT), key=_natural)
        if not results:
            raise FileNotFoundError(f"find_runs: expected a {RESULT} in or below {path}, found none")
        for result in results:
            read_content(result.parent)
            found[result.parent] = None
    return list(found)


def load_baseline(run: Run) -> Run | None:
    """Return the same run without its defense, if it was trained."""
    folder = run.folder / BASELINE
    return load_run(folder) if (folder / RESULT).is_file() else None


def _natural(result: Path) -> list[tuple[int, str]]:
    # run 10 comes after run 2: digits compare by value (their length first), text by itself
    folder = str(result.parent)
    return [(len(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", folder)]
