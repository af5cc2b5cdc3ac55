"""Find studies on disk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fl_app.results.study import STUDY, StudyResult, load_study
from fl_app.storage.plain_folder import entries_named


def find_studies(paths: Iterable[Path]) -> list[StudyResult]:
    """Return the distinct experiments in or below ``paths``, in the order of their folders."""
    files = {file.resolve(): file for path in paths for file in sorted(entries_named(path, STUDY))}
    return [load_study(file) for file in files.values()]
