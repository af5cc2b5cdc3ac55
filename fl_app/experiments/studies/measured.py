"""Values of finished cells by unit, as a selector reads them, with a reason for missing values.

A value's key is its repetition (the seed, and the selector's ``over`` axes) and its unit: the image
(client, round, place in the batch), the attacked update (client, round), or, for a run's own numbers,
the repetition itself. Sides are paired by key before averaging, so that a cell missing on one side
does not shift the other.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fl_app.experiments.studies.metrics import (
    Metric,
    at_iteration,
    read_attack,
    read_rounds,
    read_run,
    read_trace,
)
from fl_app.experiments.studies.plan import Planned, ambiguity, fits, value_of
from fl_app.experiments.studies.selector import Selector
from fl_app.results import Attack, Run, load_run

Key = tuple[tuple[str, ...], tuple[Any, ...]]
"""The repetition, and the unit in it."""
Identity = tuple[str, str]
_UPDATE = 2
"""Number of parts of an image's place that name its update: client and round."""
GAVE_UP = ("the attack gave up", "refused:")
"""Prefixes of notes that explain why an attack has no result."""


@dataclass(frozen=True)
class Measured:
    """A cell and its outcome."""

    planned: Planned
    folder: Path
    run: Run | None
    reason: str | None
    """Reason why it is not finished."""

    @property
    def status(self) -> str:
        """The state of the cell, in a word."""
        return "finished" if self.run is not None else "missing"


@dataclass(frozen=True)
class Selection:
    """The values that a selector reads."""

    unit: str
    values: Mapping[Key, float] = field(default_factory=dict)
    form: str | None = None
    """Attacker's form, where there are two."""
    not_found: int = 0
    """Number of images without a value because the attack did not find them."""
    missing: str | None = None
    identities: Mapping[Key, Identity] = field(default_factory=dict)
    """Hashes of the sample and of the model behind a value, where they are known."""

    def by_unit(self) -> dict[tuple[Any, ...], float]:
        """Return the value of every unit."""
        return average(self.values, self.unit, self.identities)


def read_cell(planned: Planned, folder: Path, reason: str | None) -> Measured:
    """Read a cell's folder; ``reason`` says why it is not finished, if it is not."""
    if reason is not None:
        return Measured(planned, folder, None, reason)
    return Measured(planned, folder, load_run(folder), None)


def average(
    values: Mapping[Key, float], unit: str, identities: Mapping[Key, Identity] | None = None
) -> dict[tuple[Any, ...], float]:
    """Return one value per unit, the mean of its values.

    Repetitions have their own units, unless their samples and model are the same ones: an attack that is
    repeated on one update says nothing about a second one.
    """
    known = identities or {}
    grouped: dict[tuple[Any, ...], dict[Key, float]] = {}
    for key, value in values.items():
        repetition, place = key
        named = {"seed": (), "update": place[:_UPDATE], "image": place}[unit]
        grouped.setdefault((*repetition, *named), {})[key] = value
    distinct: dict[tuple[Any, ...], tuple[tuple[Any, ...], list[float]]] = {}
    for name, group in grouped.items():
        same = tuple(sorted(known[key] for key in group)) if known.keys() >= group.keys() else name
        distinct.setdefault(same, (name, []))[1].extend(group.values())
    return {name: statistics.fmean(group) for name, group in distinct.values()}


def select(cells: Sequence[Measured], selector: Selector) -> Selection:
    """Read the values that a selector names; it must name one kind of cell, and a metric."""
    metric = _metric(selector)
    named = [cell for cell in cells if fits(cell.planned, selector)]
    if not named:
        return Selection(metric.unit, missing="not among the cells of this command")
    if reason := ambiguity([cell.planned for cell in named], selector):
        return Selection(metric.unit, missing=reason)
    finished = [cell for cell in named if cell.run is not None]
    if not finished:
        return Selection(metric.unit, missing=named[0].reason)
    read = _of_runs if metric.unit == "seed" else _of_attacks
    return read(finished, selector, metric)


def curves(cells: Sequence[Measured], selector: Selector) -> dict[int, list[float]]:
    """Return a metric's values by round: one per repetition, or per attacked update or image."""
    found: dict[int, list[float]] = {}
    for cell in cells:
        if cell.run is not None and fits(cell.planned, selector):
            metric = _metric(selector)
            if metric.unit == "seed":
                for number, value in read_rounds(metric, cell.run).items():
                    found.setdefault(number, []).append(value)
                continue
            for number in sorted({attack.round for attack in attacked(cell, selector) if attack.round}):
                values = _of_attacks([cell], replace(selector, round=number), metric).values.values()
                found.setdefault(number, []).extend(values)
    return dict(sorted(found.items()))


def searches(cells: Sequence[Measured], selector: Selector) -> dict[int, list[float]]:
    """Return a metric's values by iteration, one per search; a search that ended keeps its last value."""
    found = [read_trace(_metric(selector), attack) for attack in _in_selected_form(cells, selector)]
    steps = sorted({step for search in found for step in search})
    known = {step: [at_iteration(search, step) for search in found] for step in steps}
    return {step: [value for value in values if value is not None] for step, values in known.items()}


def sentence(cells: Sequence[Measured], selector: Selector, *, original: bool) -> str | None:
    """Return a search's reading of a sentence, or the sentence; None unless exactly one was attacked."""
    found = [attack.sentence for attack in _in_selected_form(cells, selector)]
    if len(found) != 1 or found[0] is None:
        return None
    reads = {read.iteration: read.tokens for read in found[0].reads if read.iteration is not None}
    tokens = found[0].true if original else at_iteration(reads, selector.iteration)
    return None if tokens is None else " ".join(tokens)


def _in_selected_form(cells: Sequence[Measured], selector: Selector) -> list[Attack]:
    """Return the attacks that a selector names, in the form whose values it reads."""
    adaptive = select(cells, selector).form == "adaptive"
    return [
        attack
        for cell in cells
        if fits(cell.planned, selector)
        for attack in in_form(cell, attacked(cell, selector), adaptive)
    ]


def attacked(cell: Measured, selector: Selector) -> list[Attack]:
    """Return the attacks of a cell's run that a selector names, in every form."""
    if cell.run is None:
        return []
    method = cell.planned.config["attack"].get("name")
    update = "trained" if selector.against == "trained" else selector.update
    if update == "undefended" and cell.run.defense == "none":
        update = "defended"  # the only update has this name
    found = [
        attack
        for attack in cell.run.comparisons
        if attack.name == method
        and attack.update == update
        and selector.labels in ("any", attack.labels_from)
        and selector.broadcaster in (None, attack.broadcaster)
        and (selector.client is None or attack.sender == selector.client)
    ]
    last = max((attack.round or 0 for attack in found), default=0)
    if selector.round is None:
        return found
    wanted = selector.round if isinstance(selector.round, tuple) else (selector.round,)
    return [
        attack for attack in found if attack.round in wanted or ("last" in wanted and attack.round == last)
    ]


def in_form(cell: Measured, attacks: Iterable[Attack], adaptive: bool) -> list[Attack]:
    """Return the attacks of one form; an attack with nothing to adapt to counts as both."""
    attacks = list(attacks)
    found = [attack for attack in attacks if attack.adaptive == adaptive]
    asked = cell.planned.config["attack"].get("adaptive")
    return attacks if not found and asked in ("both", None) else found


def _metric(selector: Selector) -> Metric:
    if selector.metric is None:
        raise ValueError("select: the selector names no metric")
    return selector.metric


def _repetition(cell: Measured, selector: Selector) -> tuple[str, ...]:
    keys = [key for key in ("seed", *selector.over) if value_of(cell.planned, key) is not None]
    return tuple(f"{key} {value_of(cell.planned, key)}" for key in keys)


def _of_runs(cells: Sequence[Measured], selector: Selector, metric: Metric) -> Selection:
    values: dict[Key, float] = {}
    for cell in cells:
        if cell.run is None:
            continue
        if selector.round is None:
            value = read_run(metric, cell.run)
        else:
            rounds = read_rounds(metric, cell.run)
            named = {"last": max(rounds, default=None), "best": cell.run.totals.best_round}
            wanted = named[selector.round] if isinstance(selector.round, str) else selector.round
            value = rounds.get(wanted) if isinstance(wanted, int) else None
        if value is not None:
            values[_repetition(cell, selector), ()] = value
    return Selection(metric.unit, values, missing=None if values else f"the runs have no {metric.name}")


def _of_attacks(cells: Sequence[Measured], selector: Selector, metric: Metric) -> Selection:
    adaptive = {"plain": [False], "adaptive": [True], "worst": [False, True]}[selector.form]
    forms = [_of_form(cells, selector, metric, form) for form in adaptive]
    known = [form for form in forms if form.values]
    if not known:
        return forms[0]
    worse: Callable[..., Selection] = min if metric.lower_leaks_more else max
    chosen = worse(known, key=lambda form: statistics.fmean(form.values.values()))
    if len(known) == 2 and known[0].values == known[1].values:
        return replace(chosen, form="both")
    return chosen


def _of_form(cells: Sequence[Measured], selector: Selector, metric: Metric, adaptive: bool) -> Selection:
    values: dict[Key, float] = {}
    identities: dict[Key, Identity] = {}
    not_found, notes = 0, list[str]()
    for cell in cells:
        repetition = _repetition(cell, selector)
        for attack in in_form(cell, attacked(cell, selector), adaptive):
            notes += attack.notes
            for position, value in enumerate(read_attack(metric, attack, selector.iteration)):
                place = ("sum" if attack.sender is None else str(attack.sender), attack.round or 0)
                key = repetition, (*place, position) if metric.unit == "image" else place
                if key in values:
                    return Selection(metric.unit, missing="attacked twice: say labels: granted or inferred")
                if value is None and metric.may_not_be_found and attack.scored:
                    not_found, value = not_found + 1, selector.not_found
                if value is not None:
                    values[key] = value
                    if attack.samples and attack.model:
                        one = metric.unit == "image" and position < len(attack.samples)
                        sample = attack.samples[position] if one else "+".join(attack.samples)
                        identities[key] = sample, attack.model
    if values:
        form = "adaptive" if adaptive else "plain"
        return Selection(metric.unit, values, form, not_found, identities=identities)
    gave_up = next((note for note in notes if note.startswith(GAVE_UP)), None)
    return Selection(metric.unit, missing=gave_up or f"no attack of that kind has {metric.name}")
