"""Accuracy against worst-case leakage: one point for every protected system, seeds joined.

A defense's accuracy often comes from long training runs and its leakage from short
attacked ones. They are joined if their configs differ in nothing but the attack, the
number of rounds and the machine: what a client sends in an attacked round is then the same.
Noise that is made to last for all rounds is another noise in a shorter run, so there
the rounds have to be the same, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from fl_app.report.data.comparison import ComparisonRow, Spread, spread_of, tell_apart, without_seed
from fl_app.report.data.formats import format_short
from fl_app.report.data.scores import SSIM, Form, means_by_form
from fl_app.report.data.update_kinds import as_sent
from fl_app.results import Attack, Run

Leakage = Literal["mean", "best"]
"""Mean SSIM of all images under the worse form of the attack, or that of the attacker's best image."""

LEAKAGES: tuple[Leakage, ...] = get_args(Leakage)

_NOT_THE_SYSTEM = frozenset(
    {"attack", "audit", "rounds", "evaluate_every", "validation", "baseline"}
    | {"timeout", "wait", "engine", "device", "threads"}
)
"""Settings of attacker, duration and machine, which do not change a client's messages."""


@dataclass(frozen=True)
class FrontierPoint:
    """One protected system."""

    defense: str
    settings: Mapping[str, str]
    """Settings that tell it from others of the same defense, model and data."""
    model: str
    data: str
    accuracy: Spread
    leaks: Mapping[Leakage, Spread]
    bytes: float | None
    """Bytes of the whole training, both ways."""
    epsilon: float | None
    """ε against the server, after the whole training."""
    worst_form: Form
    """The one with the highest mean."""
    tries: frozenset[tuple[str, int | None]]
    """Attacks that were made, with the size of the attacked batch."""
    trained: ComparisonRow
    """The runs that the accuracy, the bytes and ε are of."""
    attacked: tuple[ComparisonRow, ...]
    """The runs that leaked."""

    @property
    def full_name(self) -> str:
        """The name with the whole paths of its settings."""
        return ", ".join([self.defense, *(f"{path}={value}" for path, value in self.settings.items())])

    @property
    def joined(self) -> bool:
        """Whether accuracy and leakage come from different runs."""
        return any(row is not self.trained for row in self.attacked)

    @property
    def rounds(self) -> int:
        """Number of rounds of training."""
        return _length(self.trained)


class LeftOut(NamedTuple):
    """Run that the chart leaves out, and the reason."""

    name: str
    reason: str


class Panel(NamedTuple):
    """Points that can be compared: the same model, data, rounds and attacks."""

    model: str
    data: str
    points: list[FrontierPoint]
    left_out: list[LeftOut]

    @property
    def title(self) -> str:
        """The name of the panel: model, data and rounds."""
        rounds = {point.rounds for point in self.points}
        length = "" if len(rounds) != 1 else f", {max(rounds)} round{'' if rounds == {1} else 's'}"
        return f"{self.model} on {self.data}{length}"

    @property
    def labels(self) -> list[str]:
        """The points' short names, for the chart: the defense, a setting that alone tells it apart, and ε."""
        return [self._label(point) for point in self.points]

    def _label(self, point: FrontierPoint) -> str:
        alike = [other for other in self.points if other.defense == point.defense]
        tell = [
            key
            for key in point.settings
            if len({other.settings.get(key, "") for other in alike}) == len(alike) > 1
        ]
        # the last part of the path says enough beside the defense's name
        words = [f"{key.rpartition('.')[2]}={point.settings[key]}" for key in tell[:1]]
        epsilon = [] if point.epsilon is None else [f"ε {format_short(point.epsilon)}"]
        return ", ".join([point.defense, *words, *epsilon])


def frontier_panels(rows: Iterable[ComparisonRow]) -> list[Panel]:
    """Return a panel for each model and data that have a point or something that is left out."""
    by_place: dict[tuple[str, str], list[ComparisonRow]] = {}
    for row in rows:
        by_place.setdefault((row.model, row.data), []).append(row)
    return [part for place, found in by_place.items() for part in _comparable(_panel(*place, found))]


def _comparable(panel: Panel) -> list[Panel]:
    """Split a panel into those of one number of rounds and one set of attacks."""
    groups: dict[tuple[int, frozenset[tuple[str, int | None]]], list[FrontierPoint]] = {}
    for point in panel.points:
        groups.setdefault((point.rounds, point.tries), []).append(point)
    parts = [panel._replace(points=points, left_out=[]) for points in groups.values()]
    return [panel] if not parts else [parts[0]._replace(left_out=panel.left_out), *parts[1:]]


def pareto(points: Sequence[FrontierPoint], by: Leakage) -> frozenset[int]:
    """Return the positions of points than which no other is as good in both ways and better in one.

    Better is more than the error bars of both together; without bars, any difference is.
    """

    def beats(other: FrontierPoint, mine: FrontierPoint) -> bool:
        gains = (
            _gain(other.accuracy, mine.accuracy),
            _gain(mine.leaks[by], other.leaks[by]),
        )
        return all(gain >= 0 for gain, _ in gains) and any(gain > noise for gain, noise in gains)

    return frozenset(
        i
        for i, mine in enumerate(points)
        if not any(beats(other, mine) for other in points if other is not mine)
    )


def _gain(more: Spread, less: Spread) -> tuple[float, float]:
    """Return a difference of means and the error of both together."""
    return more.mean - less.mean, math.hypot(more.std or 0.0, less.std or 0.0)


def _panel(model: str, data: str, rows: list[ComparisonRow]) -> Panel:
    systems: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        key = json.dumps([row.defense, _system(row.runs[0])], sort_keys=True, default=str)
        systems.setdefault(key, []).append(row)
    firsts = [alike[0] for alike in systems.values()]
    settings = tell_apart((row.defense for row in firsts), (_system(row.runs[0]) for row in firsts))
    longest = max(_length(row) for row in rows)
    points, left_out = [], []
    for alike, differs in zip(systems.values(), settings, strict=True):
        made = _point(alike, differs, longest)
        points += [made] if isinstance(made, FrontierPoint) else []
        left_out += [made] if isinstance(made, LeftOut) else []
    return Panel(model, data, points, left_out)


def _system(run: Run) -> Mapping[str, object]:
    config = {key: value for key, value in run.config.items() if key not in _NOT_THE_SYSTEM}
    choices = _mapping(run.config.get("choices"))
    config["choices"] = {key: value for key, value in choices.items() if key not in _NOT_THE_SYSTEM}
    for part in ("dp", "defense"):
        # a noise that is set does not depend on how long it has to last
        if (node := _mapping(config.get(part))).get("noise_multiplier") is not None:
            config[part] = {key: value for key, value in node.items() if key != "rounds"}
    return _mapping(without_seed(config))


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _point(rows: list[ComparisonRow], settings: Mapping[str, str], longest: int) -> FrontierPoint | LeftOut:
    name = ", ".join([rows[0].defense, *(f"{path}={value}" for path, value in settings.items())])
    finished = [row for row in rows if row.status == "finished"]
    if not finished:
        return LeftOut(name, rows[0].status)
    # where others were trained, the accuracy after one round is that of an attack's run
    long = [row for row in finished if _length(row) > 1 or longest <= 1]
    trained = [(row, accuracy) for row in long if (accuracy := _finite(row.accuracy))]
    if not trained:
        return LeftOut(name, "no accuracy of a trained model")
    attacked = [row for row in finished if _finite(row.defended.mean["ssim"])]
    if not attacked:
        return LeftOut(name, "no attack whose images were scored")
    # max takes the first of equals
    training, accuracy = max(trained, key=lambda found: (_length(found[0]), len(found[0].runs)))
    attacks = [attack for row in attacked for run in row.runs for attack in as_sent(run)]
    forms = means_by_form(SSIM, attacks)
    return FrontierPoint(
        defense=training.defense,
        settings=settings,
        model=training.model,
        data=training.data,
        accuracy=accuracy,
        leaks={
            "mean": _worst(row.defended.mean["ssim"] for row in attacked),
            "best": _worst(row.defended.worst["ssim"] for row in attacked),
        },
        bytes=_mean(_sent(run) for run in training.runs),
        epsilon=_mean(_epsilon(run) for run in training.runs),
        worst_form=max(forms, key=lambda form: forms[form]),
        tries=frozenset((attack.name, attack.batch_size) for attack in attacks if _is_scored(attack)),
        trained=training,
        attacked=tuple(attacked),
    )


def _length(row: ComparisonRow) -> int:
    return max(len(run.rounds) for run in row.runs)


def _finite(spread: Spread | None) -> Spread | None:
    return spread if spread is not None and math.isfinite(spread.mean) else None


def _is_scored(attack: Attack) -> bool:
    return any(value is not None for value in attack.scores("ssim"))


def _worst(spreads: Iterable[Spread | None]) -> Spread:
    return max((spread for spread in spreads if spread is not None), key=lambda spread: spread.mean)


def _mean(values: Iterable[float | None]) -> float | None:
    spread = spread_of(values)
    return None if spread is None else spread.mean


def _epsilon(run: Run) -> float | None:
    totals = run.totals
    if run.privacy is not None and run.privacy.separation:
        return None  # nothing bounds what the server learns
    return totals.epsilon if totals.epsilon_server is None else totals.epsilon_server


def _sent(run: Run) -> float | None:
    up, down = run.totals.uplink_bytes, run.totals.downlink_bytes
    return None if up is None or down is None else up + down
