"""Search for a setting before the cells of a study run: each place of a grid takes its best value.

Every place tries the same values, one run each, so that all compared schemes get equally many attempts.
The score uses samples that the study's table does not score.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fl_app.experiments.studies.measured import Measured, select
from fl_app.experiments.studies.plan import Planned, set_override

Place = tuple[str, tuple[tuple[str, str], ...]]
"""A part, and the place on each of its axes except the seed."""


def plan_trials(cells: Iterable[Planned]) -> list[Planned]:
    """Return the runs of all searches: every value, at the first seed."""
    firsts: dict[Place, Planned] = {}
    for cell in cells:
        if cell.search is not None:
            firsts.setdefault(_place(cell), cell)
    return [
        replace(set_override(cell, f"{key}={value}"), at={**cell.at, key: value})
        for cell in firsts.values()
        if cell.search is not None
        for key, value in itertools.product([cell.search.key], cell.search.values)
    ]


def settle(cells: Sequence[Planned], trials: Sequence[Measured]) -> tuple[list[Planned], list[str]]:
    """Return the cells with the values that the trials found, and a sentence about each search.

    Ties go to the first value. A trial without a result is an error: a place with fewer trials than
    the others would be at a disadvantage.
    """
    runs = iter(trials)
    found: dict[Place, str] = {}
    for cell in cells:
        if cell.search is None or _place(cell) in found:
            continue
        scores: dict[str, float] = {}
        for value in cell.search.values:
            trial = next(runs)
            selection = select([trial], cell.search.by)
            if not selection.values:
                raise RuntimeError(
                    f"search of {cell.search.key}: expected a result of every trial, got none of "
                    f"{trial.planned.name}: {selection.missing}"
                )
            (scores[value],) = selection.values.values()
        found[_place(cell)] = max(scores, key=lambda value: scores[value])
    settled = [
        cell if cell.search is None else set_override(cell, f"{cell.search.key}={found[_place(cell)]}")
        for cell in cells
    ]
    return settled, _sentences(cells, found)


def _place(cell: Planned) -> Place:
    return cell.part, tuple((axis, label) for axis, label in cell.at.items() if axis != "seed")


def _sentences(cells: Iterable[Planned], found: Mapping[Place, str]) -> list[str]:
    by_part: dict[str, list[str]] = {}
    for (part, at), value in found.items():
        by_part.setdefault(part, []).append(f"{' '.join(label for _, label in at)}: {value}")
    keys = {cell.part: cell.search.key for cell in cells if cell.search is not None}
    return [f"{keys[part]} by search, {part}: {'; '.join(words)}" for part, words in by_part.items()]
