"""Accuracy and bytes of a defense, beside no defense and the defense whose uplink is the limit."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from fl_app.bench.criterion import Criterion
from fl_app.bench.effort import Effort
from fl_app.bench.leak import NotMeasured, run_cell
from fl_app.bench.subject import Subject
from fl_app.config.compose import compose, join_overrides
from fl_app.experiments.sweep import cell_name
from fl_app.results import Run, load_run

BYTES_ROUNDS = 20
_LAST = 5
"""Evaluations whose mean is the accuracy of a run: a single one scatters by two points."""


@dataclass(frozen=True)
class TrainingBench:
    """Runs of training of one defense."""

    subject: Subject
    criterion: Criterion
    effort: Effort
    folder: Path
    source: list[str]
    """Overrides of the data set."""

    def cells(self) -> list[tuple[str, int, list[str]]]:
        """Return the runs by defense and seed: pairs, so that time that runs out leaves whole ones."""
        found = []
        for seed in self.effort.accuracy_seeds:
            for name, overrides in (
                ("none", ["defense=none"]),
                (self.subject.name, [*self.subject.overrides]),
            ):
                found.append((name, seed, self._overrides(overrides, seed, self.effort.accuracy_rounds)))
        return found

    def limit_cell(self) -> list[str]:
        """Return the run whose uplink is the limit: what it sends does not grow over rounds."""
        limit = [f"defense={self.criterion.bytes.uplink_at_most}"]
        return self._overrides(limit, self.effort.accuracy_seeds[0], BYTES_ROUNDS)

    def run(self, overrides: list[str]) -> Run:
        """Return a finished run of training."""
        return load_run(run_cell(overrides, self._place(overrides)))

    def is_done(self, overrides: list[str]) -> bool:
        """Return whether a run has been finished."""
        name = cell_name(cast(dict[str, Any], OmegaConf.to_container(compose(join_overrides(overrides)))))
        return (self._place(overrides) / name / "report.html").is_file()

    def _place(self, overrides: list[str]) -> Path:
        """Return the folder of a run: another one for other code of a stranger's defense."""
        own = self.subject.code and self.subject.overrides[-1] in overrides
        return self.folder / (f"training-{self.subject.code}" if own else "training")

    def _overrides(self, defense: list[str], seed: int, rounds: int) -> list[str]:
        rule = self.criterion.accuracy
        return [
            *self.source,
            *(f"model={rule.model}", *defense, "attack=none", f"clients={rule.clients}"),
            *(f"batch_size={rule.batch_size}", f"rounds={rounds}", f"lr={rule.lr}", "evaluate_every=10"),
            *(f"seed={seed}", "threads=1", "baseline=false"),
        ]


def final_accuracy(run: Run) -> float:
    """Return the mean accuracy of a run's last evaluations."""
    values = [row.accuracy for row in run.rounds if row.accuracy is not None][-_LAST:]
    if not values:
        raise NotMeasured("the run was never evaluated")
    return statistics.fmean(values)


def mean_bytes(run: Run) -> tuple[float, float]:
    """Return the bytes of a round, up and down, without the first, in which models travel whole."""
    rows = [row for row in run.rounds[1:] if row.uplink_bytes is not None and row.downlink_bytes is not None]
    if not rows:
        raise NotMeasured("the run has no bytes")
    return (
        statistics.fmean(float(row.uplink_bytes or 0) for row in rows),
        statistics.fmean(float(row.downlink_bytes or 0) for row in rows),
    )
