"""Epsilon as canaries measure it in a run, noted beside the computed one."""

from __future__ import annotations

from fl_app.privacy.canaries import estimate_epsilon
from fl_app.running.result import Results
from fl_app.strategies import FedSGD
from fl_app.types import Update


def describe_canaries(strategy: FedSGD, start: Update, results: Results) -> None:
    """Note epsilon as measured by the run's canaries, if any; warn if it exceeds the computed one."""
    if strategy.canaries is None or strategy.privacy is None:
        return
    cosines = strategy.canaries.cosines(start, strategy.weights)
    privacy, facts = strategy.privacy, results.run.privacy
    if facts is None or not cosines.isfinite().all():  # no round has moved the model
        return
    measured = estimate_epsilon(cosines, sum(tensor.numel() for tensor in start.values()), privacy.delta)
    facts.canaries = privacy.canaries
    facts.epsilon_measured = measured.estimate
    facts.epsilon_measured_interval = [measured.low, measured.high]
    computed = strategy.records[-1].epsilon
    if computed is not None and measured.low > computed:
        results.run.notes.append(
            f"differential privacy: canaries measure epsilon {measured.estimate:.3g} (at least "
            f"{measured.low:.3g} with 95 % confidence), above the computed {computed:.3g}: the mechanism "
            "does not keep what was computed for it"
        )
