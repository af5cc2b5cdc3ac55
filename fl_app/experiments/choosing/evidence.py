"""Evidence for one candidate: leak, loss, bytes and ε over its seeds, each with a 95 % interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import t as student

from fl_app.report.data.intervals import half_width_of_difference
from fl_app.report.data.update_kinds import as_sent
from fl_app.results import Attack, Run


@dataclass(frozen=True)
class Measure:
    """A mean with half the width of its 95 % interval; infinite where nothing bounds it."""

    mean: float
    half: float
    count: int

    @property
    def low(self) -> float:
        """The lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """The upper end."""
        return self.mean + self.half


@dataclass(frozen=True)
class Evidence:
    """Results of one candidate."""

    seeds: int
    leak: Measure | None
    """Mean over attacked pictures of the SSIM of the better of plain and adaptive attacker."""
    loss: Measure | None
    """Points of accuracy lost against no defense, paired by seed."""
    bytes: float | None
    """Bytes of a round, up and down, of all clients."""
    epsilon: float | None


def gather(runs: Mapping[int, Run], baseline: Mapping[int, Run]) -> Evidence:
    """Join the runs of one candidate, by seed, with those of no defense."""
    sent = [
        (totals.uplink_bytes + totals.downlink_bytes) / len(run.rounds)
        for run in runs.values()
        if (totals := run.totals).uplink_bytes is not None
        and totals.downlink_bytes is not None
        and run.rounds
    ]
    spent = [
        value
        for run in runs.values()
        if (value := run.totals.epsilon if run.totals.epsilon_server is None else run.totals.epsilon_server)
        is not None
    ]
    return Evidence(
        seeds=len(runs),
        leak=_mean([score for run in runs.values() for score in worst_scores(as_sent(run))]),
        loss=Measure(0.0, 0.0, len(runs)) if runs is baseline else _loss(runs, baseline),
        bytes=statistics.fmean(sent) if sent else None,
        epsilon=max(spent, default=None),
    )


def worst_scores(attacks: Sequence[Attack]) -> list[float]:
    """Return for each attacked picture the SSIM of the form of the attack that came closest to it."""
    best: dict[tuple[object, ...], float] = {}
    for attack in attacks:
        for position, score in enumerate(attack.scores("ssim")):
            if score is not None:
                place = (attack.round, attack.client, position)
                best[place] = max(score, best.get(place, -1.0))
    return list(best.values())


def _mean(values: Sequence[float]) -> Measure | None:
    if not values:
        return None
    return Measure(statistics.fmean(values), _half(values), len(values))


def _half(values: Sequence[float]) -> float:
    """Return half the width of Student's interval; one value bounds nothing."""
    count = len(values)
    if count < 2:
        return math.inf
    return float(student.ppf(0.975, count - 1)) * statistics.stdev(values) / math.sqrt(count)


def _loss(runs: Mapping[int, Run], baseline: Mapping[int, Run]) -> Measure | None:
    pairs = [
        (without, with_it, run.test_samples)
        for seed, run in runs.items()
        if seed in baseline
        and (without := baseline[seed].totals.accuracy) is not None
        and (with_it := run.totals.accuracy) is not None
    ]
    if not pairs:
        return None
    differences = [100 * (without - with_it) for without, with_it, _ in pairs]
    by_samples = [
        100 * half_width_of_difference(without, with_it, count) for without, with_it, count in pairs if count
    ]
    # seeds share the test samples, so more seeds do not make their part of the error smaller
    sampled = max(by_samples, default=0.0)
    seeded = _half(differences) if len(differences) > 1 else (0.0 if by_samples else math.inf)
    return Measure(statistics.fmean(differences), max(sampled, seeded), len(pairs))
