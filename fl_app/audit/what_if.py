"""The same app with defenses around its client: leak, the app's own metric and bytes of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl_app.audit.options import Mod
from fl_app.audit.traffic import Traffic

_SCORES = ("accuracy", "eval_acc", "acc", "f1", "auc", "auroc")
_LOSSES = ("loss", "eval_loss")


@dataclass(frozen=True)
class Variant:
    """One row of the table."""

    name: str
    leak: float | None
    """Best score of the attacks on the update as sent or of a malicious server; None: not measured."""
    metric: str
    value: float | None
    bytes: int
    error: str = ""


def app_metric(traffic: Traffic) -> tuple[str, float | None]:
    """Return the app's own measure of the last round: its name, and the mean over the clients."""
    exchanges = traffic.of("evaluate") or traffic.of("train")
    last = max((exchange.round for exchange in exchanges), default=0)
    values: dict[str, list[float]] = {}
    for exchange in exchanges:
        if exchange.round == last:
            content = exchange.reply.content
            # the legacy API keeps metrics in config records
            records: list[Any] = [*content.metric_records.values(), *content.config_records.values()]
            for record in records:
                for key, value in record.items():
                    if isinstance(value, int | float):
                        values.setdefault(key, []).append(float(value))
    for wanted in (*_SCORES, *_LOSSES):
        for key in values:
            if wanted in key.lower():
                return key, sum(values[key]) / len(values[key])
    return "", None


def compare(
    defenses: Mapping[str, Sequence[Mod]], run: Callable[[Sequence[Mod]], tuple[Traffic, float | None]]
) -> list[Variant]:
    """Run the app once for each list of mods; ``run`` returns its traffic and its leak."""
    rows = []
    for name, mods in defenses.items():
        traffic, leak = run(mods)
        metric, value = app_metric(traffic)
        error = "; ".join(traffic.errors()[:2]) if not traffic.of("train") else ""
        rows.append(Variant(name, leak, metric, value, traffic.bytes(), error))
    return rows


def frontier(rows: Sequence[Variant], *, lower_is_better: bool = False) -> list[str]:
    """Return the names of the rows that no other row beats in both leak and metric."""
    sign = -1.0 if lower_is_better else 1.0
    known = [(r.name, r.leak, sign * r.value) for r in rows if r.leak is not None and r.value is not None]
    return [
        name
        for name, leak, value in known
        if not any(
            other <= leak and better >= value and (other, better) != (leak, value)
            for _, other, better in known
        )
    ]
