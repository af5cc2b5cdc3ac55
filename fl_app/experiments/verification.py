"""Rerun published cells of a study and compare every score with what was published."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fl_app.config.compose import nearest
from fl_app.experiments.studies.units import units_of_run
from fl_app.experiments.sweep import Cell, run_sweep
from fl_app.results import Run, load_run
from fl_app.results.study import STUDY, StudyCell, StudyResult, load_study
from fl_app.results.units import Unit, read_units
from fl_app.running.origin import processor

RELATIVE, ABSOLUTE = 0.05, 0.02
"""Tolerances on another machine: means over a cell's units may differ by the larger one.

A search amplifies the last bit of a sum, so single images differ more than that there.
"""
_SHOWN = 5


@dataclass(frozen=True)
class Comparison:
    """A published cell beside its rerun."""

    cell: str
    exact: bool
    """Whether every bit was compared; else means within the tolerances."""
    compared: int = 0
    differences: Sequence[str] = ()
    notes: Sequence[str] = ()
    """Circumstances in which the rerun differs from the published run."""

    @property
    def agrees(self) -> bool:
        """Whether the rerun gave what was published."""
        return not self.differences and self.compared > 0


@dataclass(frozen=True)
class Verification:
    """The outcome of a command: one comparison for each cell that ran, reasons for the others."""

    compared: Sequence[Comparison]
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def agrees(self) -> bool:
        """Whether every cell ran and gave what was published."""
        return bool(self.compared) and not self.failed and all(one.agrees for one in self.compared)


def find_published(name: str, roots: Iterable[Path]) -> Path:
    """Return the folder of a published study: a path, or a study's name below one of ``roots``."""
    if (Path(name) / STUDY).is_file():
        return Path(name)
    known: dict[str, Path] = {}
    for root in roots:
        for file in sorted(root.glob(f"*/{STUDY}")):  # published
            known.setdefault(file.parent.name.rpartition("-")[0], file.parent)
        for file in sorted(root.glob(f"*/*/{STUDY}")):  # as the study's own command leaves it
            known.setdefault(file.parent.parent.name, file.parent)
    if name not in known:
        there = ", ".join(sorted(known)) or "none is here"
        raise FileNotFoundError(
            f"verify: expected a folder with {STUDY} or a study's name ({there}), got {name!r}"
            f"{nearest(name, list(known))}"
        )
    return known[name]


def verify(folder: Path, cell: str | None, work: Path, say: Callable[[str], None], jobs: int) -> Verification:
    """Rerun one cell, or all finished ones, of the study in ``folder`` below ``work``, and compare them."""
    study = load_study(folder / STUDY)
    wanted = _wanted(study, cell)
    published: dict[str, list[Unit]] = {one.name: [] for one in wanted}
    for unit in read_units(folder):
        if unit.cell in published:
            published[unit.cell].append(unit)
    cells = [Cell(list(one.overrides), work, one.name) for one in wanted]
    end = run_sweep(cells, say, jobs=jobs)
    failed = {wanted[number].name: reason for number, reason in end.reasons.items()}
    rerun = {run.config_hash: run for run in map(load_run, end.finished)}
    compared = []
    for one in wanted:
        if one.name in failed:
            continue
        run = rerun.get(one.config)
        if run is None:
            failed[one.name] = "its settings are no longer those of the published run: conf/ has changed"
        else:
            compared.append(compare(one, published[one.name], run))
    return Verification(compared, failed)


def _wanted(study: StudyResult, cell: str | None) -> list[StudyCell]:
    finished = [one for one in study.cells if one.status == "finished"]
    names = [one.name for one in finished]
    if cell is None:
        if not finished:
            raise ValueError(f"verify: {study.name} has no finished cell")
        return finished
    if cell not in names:
        raise ValueError(
            f"verify: {study.name} has no finished cell {cell!r}{nearest(cell, names)}; there are:\n  "
            + "\n  ".join(names)
        )
    return [finished[names.index(cell)]]


def compare(cell: StudyCell, published: Sequence[Unit], run: Run) -> Comparison:
    """Compare the published units of a cell with those of its rerun."""
    notes = _circumstances(cell, run)
    exact = not notes
    ours = {unit.name: unit for unit in units_of_run(cell.name, run)}
    theirs = {unit.name: unit for unit in published}
    differences = [
        f"{unit.in_words}: published, and missing in the rerun"
        for name, unit in theirs.items()
        if name not in ours
    ]
    differences += [
        f"{unit.in_words}: in the rerun, and not published"
        for name, unit in ours.items()
        if name not in theirs
    ]
    both = [(theirs[name], unit) for name, unit in ours.items() if name in theirs]
    differences += _samples(both)
    differences += _bits(both) if exact else _means(both)
    shown = differences[:_SHOWN]
    if len(differences) > _SHOWN:
        shown.append(f"and {len(differences) - _SHOWN} more")
    return Comparison(cell.name, exact, len(both), shown, notes)


def _circumstances(cell: StudyCell, run: Run) -> list[str]:
    """Return the circumstances that change the last bits of a sum."""
    published = cell.origin
    here = {"processor": processor(), "torch": torch.__version__.partition("+")[0]}
    there = {
        "processor": None if published is None else published.processor,
        "torch": cell.versions.get("torch", "").partition("+")[0] or None,
    }
    if run.origin is not None and published is not None:
        here["threads"], there["threads"] = str(run.origin.threads), str(published.threads)
    return [
        f"{name}: published {there[name] or 'unknown'}, here {value or 'unknown'}"
        for name, value in here.items()
        if there[name] != value
    ]


def _samples(both: Sequence[tuple[Unit, Unit]]) -> list[str]:
    """Return the units whose samples are others: no tolerance covers that."""
    return [
        f"{theirs.in_words}: of sample {theirs.sample}, in the rerun of {ours.sample}"
        for theirs, ours in both
        if theirs.sample and ours.sample and theirs.sample != ours.sample
    ]


def _bits(both: Sequence[tuple[Unit, Unit]]) -> list[str]:
    return [
        f"{theirs.in_words}: published {theirs.value!r}, in the rerun {ours.value!r}"
        for theirs, ours in both
        if repr(theirs.value) != repr(ours.value)
    ]


def _means(both: Sequence[tuple[Unit, Unit]]) -> list[str]:
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for theirs, ours in both:
        shared: tuple[str, ...] = (
            theirs.kind,
            theirs.attack,
            theirs.form,
            theirs.update,
            theirs.against,
            theirs.metric,
        )
        groups.setdefault(shared, []).append((theirs.value, ours.value))
    found = []
    for shared, pairs in groups.items():
        published, rerun = (statistics.fmean(side) for side in zip(*pairs, strict=True))
        allowed = max(RELATIVE * abs(published), ABSOLUTE)
        if not abs(published - rerun) <= allowed:
            words = " ".join(word for word in shared if word)
            found.append(f"{words}: mean {published:.4g} published, {rerun:.4g} in the rerun")
    return found
