"""Metrics of a round from the numbers that its clients report."""

from __future__ import annotations

from collections.abc import Mapping

from fl_app.results import Round
from fl_app.strategies.aggregate import largest_of, mean_of
from fl_app.wire.messages import Reply


def note_metrics(record: Round, counted: Mapping[int, Reply], weights: Mapping[int, float]) -> None:
    """Write the clients' loss (by weight), residual, gradient norm and pruned share into ``record``."""

    def told(name: str) -> list[float | None]:
        return [reply.metrics.get(name) for reply in counted.values()]

    record.train_loss = mean_of(told("loss"), list(weights.values()))
    record.residual_norm = mean_of(told("residual_norm"), [1.0] * len(counted))
    record.gradient_norm = largest_of(told("gradient_norm"))
    record.pruned_share = largest_of(told("pruned_share"))
