"""One fixture: a small run with the choices of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fl_app.cli.own_code import search_in
from fl_app.experiments.job import run_job

SMALL = ["clients=2", "rounds=2", "batch_size=4", "evaluate_every=1", "threads=1", "baseline=false"]
WHERE = ["data=my_data", "model=my_model"]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``run(overrides)`` runs like ``fl-app --config-dir conf`` and returns ``result.json``."""

    def run(*overrides: str) -> dict[str, Any]:
        searched = search_in(str(Path(__file__).parent / "conf"))
        folder = run_job([*searched, *SMALL, *WHERE, *overrides], folder=tmp_path / "run")
        content: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return content

    return run
