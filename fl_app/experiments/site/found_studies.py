"""Find studies on disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fl_app.results.study import STUDY, StudyResult, load_study


def find_studies(paths: Iterable[Path]) -> list[StudyResult]:
    """Return the distinct experiments in or below ``paths``, in the order of their folders."""
    files = {file.resolve(): file for path in paths for file in sorted(path.rglob(STUDY))}
    return [load_study(file) for file in files.values()]
