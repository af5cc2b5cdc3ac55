"""Scores of finished cells, one row for each image, attacked update and run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fl_app.experiments.studies.measured import Measured
from fl_app.experiments.studies.metrics import RUN_METRICS, metric_of, read_run
from fl_app.results import Attack, Run
from fl_app.results.attack import METRICS
from fl_app.results.units import Unit


def units_of(cells: Iterable[Measured]) -> Iterator[Unit]:
    """Yield the units of all finished cells, in their order; times are left out, as no rerun repeats them."""
    for cell in cells:
        if cell.run is not None:
            yield from units_of_run(cell.planned.name, cell.run)


def units_of_run(cell: str, run: Run) -> Iterator[Unit]:
    """Yield the units of one run under the name of its cell."""
    for name in RUN_METRICS:
        if (value := read_run(metric_of(name, cell), run)) is not None:
            yield _unit(cell, "run", name, value)
    for attack in run.comparisons:
        yield from _of_attack(cell, attack)


def _of_attack(cell: str, attack: Attack) -> Iterator[Unit]:
    samples: Sequence[str] = attack.samples or ()
    for metric in METRICS:
        for position, value in enumerate(attack.scores(metric)):
            if value is not None:
                sample = samples[position] if position < len(samples) else ""
                yield _unit(cell, "image", metric, value, attack, position=str(position), sample=sample)
    numbers = {f"labels.{name}": value for name, value in attack.label_scores.items()}
    numbers |= {f"attack.{name}": value for name, value in attack.others.items()}
    for name, value in numbers.items():
        yield _unit(cell, "update", name, value, attack, sample="+".join(samples))


def _unit(
    cell: str,
    kind: str,
    metric: str,
    value: float,
    attack: Attack | None = None,
    *,
    position: str = "",
    sample: str = "",
) -> Unit:
    of = Attack() if attack is None else attack
    return Unit(
        cell=cell,
        kind=kind,
        attack="" if attack is None else of.name,
        form="" if attack is None else ("adaptive" if of.adaptive else "plain"),
        update="" if attack is None else ("defended" if of.update == "trained" else of.update),
        against="trained" if of.update == "trained" else "",
        labels=of.labels_from or "",
        round="" if of.round is None else str(of.round),
        client="" if attack is None or of.sender is None else str(of.sender),
        position=position,
        sample=sample,
        model=of.model or "",
        metric=metric,
        value=float(value),
    )
