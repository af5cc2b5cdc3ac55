"""Find run folders on disk and read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from fl_app.console.words import printable
from fl_app.report.data.records import Run, parse_run
from fl_app.storage.plain_folder import refuse_links

RESULT = "result.json"
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
        results = (
            [path] if path.is_file() and path.name == RESULT else sorted(path.rglob(RESULT), key=_natural)
        )
        if not results:
            raise FileNotFoundError(f"find_runs: expected a {RESULT} in or below {path}, found none")
        for result in results:
            _read(result)
            found[result.parent] = None
    return list(found)


def load_run(run_dir: Path | str) -> Run:
    """Read one run folder."""
    return parse_run(Path(run_dir), _read(Path(run_dir) / RESULT))


def load_baseline(run: Run) -> Run | None:
    """Return the same run without its defense, if it was trained."""
    folder = run.folder / BASELINE
    return load_run(folder) if (folder / RESULT).is_file() else None


def _natural(result: Path) -> list[tuple[int, str]]:
    # run 10 comes after run 2: digits compare by value (their length first), text by itself
    folder = str(result.parent)
    return [(len(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", folder)]


def _read(path: Path) -> Mapping[str, object]:
    """Return a result, which a stranger may have written: its texts are printable."""
    refuse_links(path.parent)
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # bad JSON and bad UTF-8 alike
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(raw).__name__}")
    return cast(Mapping[str, object], _spelled(raw))


def _spelled(value: object) -> object:
    if isinstance(value, str):
        return printable(value, lines=True)
    if isinstance(value, dict):
        return {printable(key): _spelled(item) for key, item in value.items()}
    return [_spelled(item) for item in value] if isinstance(value, list) else value
