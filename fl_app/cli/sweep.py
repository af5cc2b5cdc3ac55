"""``fl-app -m``: the cells of a sweep, then the comparison of those that finished."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_app.cli.guard import INTERRUPTED
from fl_app.config.compose import ConfigError
from fl_app.console.streams import say
from fl_app.experiments.sweep import Cell, run_sweep
from fl_app.report import compare_runs, comparison_rows, comparison_table

BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def check_launch(state: Any) -> None:
    """Refuse settings of Hydra's own that would run cells in another way; Hydra only lists them."""
    if state.sweep.subdir != ".":
        raise ConfigError("hydra.sweep.subdir: a cell's folder is named by its config; set hydra.sweep.dir")
    if state.launcher._target_ != BASIC_LAUNCHER:
        raise ConfigError(
            "hydra/launcher: expected basic; jobs=N runs N cells at a time, "
            f"and the same command, started once more, shares the work; got {state.launcher._target_}"
        )


def run_cells(planned: Sequence[tuple[list[str], Path]], *, named: bool, jobs: int = 1) -> None:
    """Run all cells, given as overrides and the sweep's folder, and compare those that finished.

    ``named``: the same command finds the folder again.
    """
    cells = [Cell(overrides, folder) for overrides, folder in planned]
    # one folder, unless experiments are swept over
    folder = Path(os.path.commonpath([cell.sweep_folder for cell in cells]))
    place = shlex.quote(f"hydra.sweep.dir={os.path.relpath(folder)}")
    again = "the same command" if named else f"the same command with {place}"
    try:
        end = run_sweep(cells, say, jobs=jobs)
    except KeyboardInterrupt:
        kept = f"the runs are in {folder.resolve()}"
        print(f"fl-app: interrupted; {kept}; {again} goes on with what is not finished", file=sys.stderr)
        sys.exit(INTERRUPTED)
    if end.finished:
        console = Console()
        console.print(comparison_table(comparison_rows(end.finished), console.width))
        console.print(f"comparison: {compare_runs(end.finished, folder)}", soft_wrap=True)
    end_with_failures(end.failed, len(cells), again)


def end_with_failures(failed: Sequence[str], cells: int, again: str) -> None:
    """If cells failed, name them and end with exit code 1."""
    if failed:
        print(
            f"fl-app: {len(failed)} of {cells} cells failed; {again} runs them again:",
            *failed,
            sep="\n  ",
            file=sys.stderr,
        )
        sys.exit(1)
