"""Metrics of a finished run by name: per image, per attacked update, or per run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_app.config.compose import ConfigError, nearest
from fl_app.results import Attack, Membership, Row, Run

IMAGE_METRICS = ("psnr", "ssim", "lpips", "mse")
_LOWER_LEAKS_MORE = (
    *("lpips", "mse", "attack.token_wer", "attack.token_error_rate", "attack.objective"),
    *("attack.iterations", "attack.iterations_mse", "trace.mse", "trace.distance"),
)
_NEVER_REACHED = ("attack.iterations", "attack.iterations_mse")
_BINARY = ("labels.exact", "attack.token_exact")
_FROM_0_TO_1 = (
    *("ssim", "lpips", "mse", "trace.mse", "trace.tokens"),
    *("attack.recovered", "attack.found", "attack.identified_share", "attack.token_accuracy", *_BINARY),
)
TRACED = ("mse", "distance", "tokens", "layers")


@dataclass(frozen=True)
class Metric:
    """One quantity; ``unit`` says whether it has one value per image, update or seed."""

    name: str
    unit: str
    counted: bool = False
    """Whether the settings alone determine it, so that there is nothing to test."""

    @property
    def lower_leaks_more(self) -> bool:
        """True if a lower value is worse for the user."""
        return self.name in _LOWER_LEAKS_MORE or self.name.startswith("trace.layers.")

    @property
    def range(self) -> tuple[float, float] | None:
        """Bounds of its scores; None: unbounded.

        A claim counts an SSIM below 0 as 0 and an LPIPS above 1 as 1.
        """
        return (0.0, 1.0) if self.name in _FROM_0_TO_1 or self.name.startswith("labels.") else None

    @property
    def binary(self) -> bool:
        """True if the score of a single sample is 0 or 1; that of a batch may be a share."""
        return self.name in _BINARY

    @property
    def traced(self) -> bool:
        """True if every snapshot of a search has it."""
        return self.name.startswith("trace.")

    @property
    def may_not_be_found(self) -> bool:
        """True if a missing value means that the attack found nothing."""
        return self.unit == "image" or self.name in _NEVER_REACHED


def _total(name: str) -> Callable[[Run], float | None]:
    def total(run: Run) -> float | None:
        value: float | None = getattr(run.totals, name)
        return value

    return total


def _mean_bytes(of: str) -> Callable[[Run], float | None]:
    def per_client(run: Run) -> float | None:
        total, answers = getattr(run.totals, of), sum(r.clients or 0 for r in run.rounds)
        return None if total is None or not answers else total / answers

    return per_client


def _compression(run: Run) -> float | None:
    up, down, dense = run.totals.uplink_bytes, run.totals.downlink_bytes, run.totals.dense_bytes
    return None if up is None or down is None or dense is None or not up + down else dense / (up + down)


def _residual_square(run: Run) -> float | None:
    norms = [r.residual_norm for r in run.rounds if r.residual_norm is not None]
    return max(norms) ** 2 if norms else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _found_at(row: Membership, rate: float) -> float | None:
    """Return the share of members that the best statistic finds at a rate of false alarms."""
    best = row.statistics.get(row.best or "")
    return _most(point.tpr for point in best.points if point.rate == rate) if best is not None else None


_OF_RUN: dict[str, Callable[[Run], float | None]] = {
    **{
        name: _total(name)
        for name in ("accuracy", "best_accuracy", "balanced_accuracy", "auroc", "wer", "seconds")
    },
    "residual_square": _residual_square,
    "member_auc": lambda run: _most(row.best_auc for row in run.membership or []),
    "member_tpr": lambda run: _most(_found_at(row, 0.1) for row in run.membership or []),
    "best_round": lambda run: None if run.totals.best_round is None else float(run.totals.best_round),
    "loss": lambda run: next((r.loss for r in reversed(run.rounds) if r.loss is not None), None),
}
_COUNTED: dict[str, Callable[[Run], float | None]] = {
    **{
        name: _total(name)
        for name in (
            "uplink_bytes",
            "downlink_bytes",
            "dense_bytes",
            "epsilon",
            "epsilon_server",
            "epsilon_record",
        )
    },
    "parameters": lambda run: run.model.parameters,
    "uplink_per_client": _mean_bytes("uplink_bytes"),
    "downlink_per_client": _mean_bytes("downlink_bytes"),
    "compression": _compression,
}
RUN_METRICS = tuple(name for name in (*_OF_RUN, *_COUNTED) if name != "seconds")
"""Metrics of a whole run that a rerun repeats."""
_OF_ROUND = (
    "accuracy",
    "balanced_accuracy",
    "auroc",
    "wer",
    "loss",
    "train_loss",
    "uplink_bytes",
    "downlink_bytes",
    "epsilon",
    "epsilon_server",
    "epsilon_record",
    "residual_norm",
    "gradient_norm",
    "pruned_share",
    "bytes_per_client",
    "dense_share",
    "validation_accuracy",
)
_CUMULATED = {"uplink_cost": "uplink_bytes", "downlink_cost": "downlink_bytes"}
"""Cumulated bytes divided by all clients, sampled or not: the mean cost of training per client."""


def _values_up(run: Run) -> int | None:
    return None if run.exchange is None else run.exchange.values


def _values_down(run: Run) -> int | None:
    """Return the number of values that a client receives: all, unless the coordinates never change."""
    if run.exchange is None:
        return None
    return run.exchange.values if run.exchange.by_layer else run.exchange.of


_FORMULA: dict[str, Callable[[Run], int | None]] = {
    "uplink_formula": _values_up,
    "downlink_formula": _values_down,
}
"""The same cost by the formula of Kerkouche et al. (UAI 2021): r·n·32·Round·C bits, without packing."""
_FLOAT_BYTES = 4
RESULT_PARTS = ("summary", "model", "exchange", "privacy", "weights", "config")


def metric_of(name: Any, place: str) -> Metric:
    """Return the metric of that name; an error lists all of them."""
    known = [*IMAGE_METRICS, *_OF_RUN, *_COUNTED, *_CUMULATED, *_FORMULA, *_OF_ROUND]
    if name in IMAGE_METRICS:
        return Metric(name, "image")
    if name in known:
        return Metric(name, "seed", counted=name in (*_COUNTED, *_CUMULATED, *_FORMULA))
    prefix, _, rest = str(name).partition(".")
    if prefix in ("labels", "attack") and rest:
        return Metric(name, "update")
    if prefix == "trace" and rest.split(".")[0] in TRACED and (rest.count(".") > 0) == (rest[:6] == "layers"):
        return Metric(name, "update")
    if prefix in RESULT_PARTS and rest:
        return Metric(name, "seed")
    raise ConfigError(
        f"{place}: {name!r} is no metric; there are {', '.join(dict.fromkeys(known))}, "
        f"labels.… and attack.… for numbers of an attack's entry, trace.mse, trace.distance, trace.tokens "
        f"and trace.layers.… for those of a search, and {'.…, '.join(RESULT_PARTS)}.… "
        f"for others of result.json{nearest(str(name), known)}"
    )


def read_run(metric: Metric, run: Run) -> float | None:
    """Return a metric of the whole run."""
    read = _OF_RUN.get(metric.name) or _COUNTED.get(metric.name)
    if read is not None:
        return read(run)
    if metric.name in (*_CUMULATED, *_FORMULA):
        return next(reversed(read_rounds(metric, run).values()), None)
    if metric.name in _OF_ROUND:
        values = [getattr(r, metric.name) for r in run.rounds]
        return next((value for value in reversed(values) if value is not None), None)
    value = read_part(run, metric.name.split("."))
    return float(value) if isinstance(value, int | float) else None


def read_part(run: Run, path: Sequence[str]) -> object:
    """Return a value or row of result.json below one of `RESULT_PARTS`."""
    value: object = getattr(run, path[0]) if path and path[0] in RESULT_PARTS else None
    for key in path[1:]:
        values = vars(value) if isinstance(value, Row) else value
        value = values.get(key) if isinstance(values, Mapping) else None
    return value


def read_rounds(metric: Metric, run: Run) -> dict[int, float]:
    """Return a metric by round, where it was measured."""
    if metric.name in _CUMULATED:
        return _cumulate(metric, run)
    if metric.name in _FORMULA:
        return _formula(metric, run)
    if metric.name not in _OF_ROUND:
        return {}
    found = {r.round: getattr(r, metric.name) for r in run.rounds}
    return {number: value for number, value in found.items() if value is not None}


def has_rounds(metric: Metric) -> bool:
    """Return whether the metric has a value for every round."""
    return metric.name in (*_OF_ROUND, *_CUMULATED, *_FORMULA)


def read_trace(metric: Metric, attack: Attack) -> dict[int, float]:
    """Return a metric by iteration of the search, where a snapshot of it was kept."""
    prefix, _, name = metric.name.removeprefix("trace.").partition(".")
    found: dict[int, float | None]
    if prefix == "tokens":
        reads = () if attack.sentence is None else attack.sentence.reads
        found = {read.iteration: read.accuracy for read in reads if read.iteration is not None}
    elif prefix == "layers":
        found = {point.iteration: point.layers.get(name) for point in attack.trace}
    else:
        found = {point.iteration: getattr(point, prefix) for point in attack.trace}
    return {iteration: value for iteration, value in sorted(found.items()) if value is not None}


def at_iteration(values: Mapping[int, Any], iteration: int | None) -> Any:
    """Return the latest value up to an iteration: a finished search keeps its last value."""
    known = [number for number in values if iteration is None or number <= iteration]
    return values[max(known)] if known else None


def read_attack(metric: Metric, attack: Attack, iteration: int | None = None) -> tuple[float | None, ...]:
    """Return a metric of an attacked update: one value per image, or a single one."""
    if metric.traced:
        return (at_iteration(read_trace(metric, attack), iteration),)
    if metric.unit == "image":
        return tuple(attack.scores(metric.name))
    prefix, _, name = metric.name.partition(".")
    if prefix == "labels":
        return (attack.label_scores.get(name),)
    value = getattr(attack, name, None) if name in ("objective", "seconds") else attack.others.get(name)
    return (value,)


def _cumulate(metric: Metric, run: Run) -> dict[int, float]:
    clients, total, found = run.amount("clients"), 0.0, dict[int, float]()
    for entry in run.rounds:
        spent = getattr(entry, _CUMULATED[metric.name])
        if spent is None or not clients:
            return found
        total += spent
        found[entry.round] = total / clients
    return found


def _formula(metric: Metric, run: Run) -> dict[int, float]:
    values, rate = _FORMULA[metric.name](run), run.amount("fraction")
    if values is None or rate is None:
        return {}
    return {entry.round: values * _FLOAT_BYTES * entry.round * rate for entry in run.rounds}
