"""Trials of all candidates at equal rounds and several seeds, within a time budget, resumable."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from fl_app.config.compose import compose, join_overrides
from fl_app.experiments.choosing.candidates import Candidate
from fl_app.experiments.job import is_done
from fl_app.experiments.sweep import Cell, cell_name, run_sweep
from fl_app.report.data.formats import format_seconds
from fl_app.results import Run, load_run

CELLS = "cells"


@dataclass(frozen=True)
class Trial:
    """What is tried, and within which time."""

    candidates: Sequence[Candidate]
    overrides: Sequence[str]
    """The user's own: data, model, rounds and so on."""
    seeds: int
    minutes: float
    root: Path
    jobs: int = 1


@dataclass(frozen=True)
class Tried:
    """Runs by candidate and seed, reasons of failures, and whether time ran out."""

    runs: Mapping[str, Mapping[int, Run]]
    failed: Mapping[str, str]
    left: int
    """Cells for which there was no time."""


def run_trial(trial: Trial, say: Callable[[str], None]) -> Tried:
    """Run the cells seed by seed, so that time that runs out costs seeds and no candidates."""
    cells = [(one, seed) for seed in range(trial.seeds) for one in trial.candidates]
    runs: dict[str, dict[int, Run]] = {one.name: {} for one in trial.candidates}
    failed: dict[str, str] = {}
    start, took = time.monotonic(), 0.0
    done = fresh = 0
    while done < len(cells):
        batch = cells[done : done + trial.jobs]
        each = took / fresh if fresh else 0.0
        late = time.monotonic() - start + each > 60 * trial.minutes
        if late and not all(_is_finished(trial, one, seed) for one, seed in batch):
            break
        began, unfinished = time.monotonic(), not all(_is_finished(trial, *cell) for cell in batch)
        end = run_sweep([_cell(trial, *cell) for cell in batch], lambda line: None, jobs=trial.jobs)
        if unfinished:
            took, fresh = took + time.monotonic() - began, fresh + 1
        for number, (one, seed) in enumerate(batch):
            if number in end.reasons:
                failed[one.name] = end.reasons[number]
            else:
                runs[one.name][seed] = load_run(_folder(trial, one, seed))
            state = end.reasons.get(number, "finished")
            say(f"{done + number + 1} of {len(cells)}: {one.name}, seed {seed}: {state}")
        done += len(batch)
        if fresh == 1 and unfinished:
            whole = (len(cells) - done) / trial.jobs * took
            say(
                f"all {len(cells)} runs need about {format_seconds(whole)} more; budget {trial.minutes:g} min"
            )
    return Tried(runs, failed, len(cells) - done)


def _cell(trial: Trial, one: Candidate, seed: int) -> Cell:
    overrides = [*trial.overrides, *one.overrides, f"seed={seed}", "baseline=false"]
    return Cell(overrides, trial.root / CELLS, f"{one.name}, seed {seed}")


def _folder(trial: Trial, one: Candidate, seed: int) -> Path:
    return trial.root / CELLS / cell_name(_config(trial, one, seed))


def _is_finished(trial: Trial, one: Candidate, seed: int) -> bool:
    try:
        config = _config(trial, one, seed)
    except ValueError:  # it fails at once, for that reason
        return True
    return is_done(trial.root / CELLS / cell_name(config), config, sweep=True)


def _config(trial: Trial, one: Candidate, seed: int) -> dict[str, Any]:
    cfg = compose(join_overrides(_cell(trial, one, seed).overrides))
    return cast(dict[str, Any], OmegaConf.to_container(cfg))
