"""Run the unfinished cells of a study, and write its results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fl_app.config.compose import ConfigError, nearest
from fl_app.experiments.job import is_done
from fl_app.experiments.studies.claims import judge
from fl_app.experiments.studies.figures import gather
from fl_app.experiments.studies.measured import Measured, read_cell
from fl_app.experiments.studies.page import Findings
from fl_app.experiments.studies.plan import Planned, check_selectors, check_settings, plan_cells
from fl_app.experiments.studies.protocol import read_protocol
from fl_app.experiments.studies.search import plan_trials, settle
from fl_app.experiments.studies.study_file import DEFAULT_SCALE, Study, read_study
from fl_app.experiments.studies.table import fill_table
from fl_app.experiments.studies.writing import write_study
from fl_app.experiments.sweep import Cell, SweepEnd, cell_name, run_sweep
from fl_app.results.study import VARIANT

CELLS = "cells"
"""Folder of the cells of all studies below one root; a config shared by two studies runs once."""
_HASH_DIGITS = 8


@dataclass(frozen=True)
class StudyOrder:
    """A command's request to run a study."""

    name: str
    raw: Mapping[str, Any]
    """Content of the study's file."""
    command: str
    scale: str = DEFAULT_SCALE
    parts: tuple[str, ...] = ()
    """Parts to run; empty: all."""
    overrides: tuple[str, ...] = ()
    root: Path = Path("multirun")
    """Folder of all studies and of the cells that they share."""
    jobs: int = 1


@dataclass(frozen=True)
class StudyEnd:
    """Outcome of a study: its content, its page, and the failed cells."""

    found: Findings
    page: Path
    failed: Sequence[str]


def run_study(order: StudyOrder, say: Callable[[str], None]) -> StudyEnd:
    """Run a study and write its results; an interrupted study still writes its finished cells."""
    study = read_study(order.name, order.raw, order.scale)
    own = plan_cells(study)
    check_selectors(study, own)
    asked = _asked(study, order.parts)
    cells = plan_cells(asked, order.overrides) if order.parts or order.overrides else own
    check_settings(cells)
    if trials := plan_trials(cells):
        tried = _run(order, trials, say)
        cells, notes = settle(cells, _measure_all(order, trials, tried.reasons))
        study = replace(study, notes=(*study.notes, *notes))
    try:
        end = _run(order, cells, say)
    except KeyboardInterrupt:
        _write(order, study, cells, {})
        raise
    return _write(order, study, cells, end.reasons, end)


def _run(order: StudyOrder, cells: Sequence[Planned], say: Callable[[str], None]) -> SweepEnd:
    runs = [Cell(cell.overrides, order.root / CELLS, cell.name) for cell in cells]
    return run_sweep(runs, say, jobs=order.jobs)


def _asked(study: Study, parts: Sequence[str]) -> Study:
    names = [part.name for part in study.parts]
    if unknown := [part for part in parts if part not in names]:
        raise ConfigError(
            f"parts: {study.name} has {', '.join(names)}, got {unknown[0]!r}{nearest(unknown[0], names)}"
        )
    return replace(study, parts=tuple(part for part in study.parts if not parts or part.name in parts))


def _write(
    order: StudyOrder,
    study: Study,
    cells: Sequence[Planned],
    reasons: Mapping[int, str],
    end: SweepEnd | None = None,
) -> StudyEnd:
    measured = _measure_all(order, cells, reasons)
    protocol, protocol_hash = read_protocol(study.paper)
    found = Findings(
        study,
        order.command,
        measured,
        fill_table(study, measured),
        [gather(figure, measured) for figure in study.figures],
        judge(study, measured, protocol),
        protocol_hash,
        _asked_for(order),
    )
    home = order.root / study.name / study.scale
    return StudyEnd(found, write_study(found, home / _variant(order)), [] if end is None else end.failed)


def _measure_all(order: StudyOrder, cells: Sequence[Planned], reasons: Mapping[int, str]) -> list[Measured]:
    pool = order.root / CELLS
    return [_measure(cell, pool, reasons.get(number, "not run yet")) for number, cell in enumerate(cells)]


def _measure(cell: Planned, pool: Path, reason: str) -> Measured:
    try:
        folder = pool / cell_name(cell.config)
    except ConfigError:  # it failed, for that reason
        return read_cell(cell, pool, reason)
    return read_cell(cell, folder, None if is_done(folder, cell.config, sweep=True) else reason)


def _asked_for(order: StudyOrder) -> list[str]:
    """Return what makes the command another than that of the whole study."""
    return [*([f"parts={','.join(order.parts)}"] if order.parts else []), *order.overrides]


def _variant(order: StudyOrder) -> str:
    """Return the output folder: cells are shared by all commands, tables are not."""
    if not _asked_for(order):
        return "."
    asked = json.dumps([sorted(order.parts), sorted(order.overrides)])
    return f"{VARIANT}{hashlib.sha256(asked.encode()).hexdigest()[:_HASH_DIGITS]}"
