"""Outcome of the rounds of one start: a run that used no client's update has failed."""

from __future__ import annotations

from collections.abc import Sequence

from fl_app.console.stated_failure import StatedFailure, most_frequent
from fl_app.results import Round


class NoUpdateUsed(StatedFailure):
    """Every round ended without a usable update, so the model is the initial one."""


def check_used(who: str, records: Sequence[Round]) -> None:
    """Raise `NoUpdateUsed` with the most frequent reason if no round used an update and something failed.

    An update that an active attack took, or an empty draw under differential privacy, is no failure.
    """
    if any(record.clients or record.attacked for record in records):
        return
    failed = [failure.reason or "no reason" for record in records for failure in record.failures]
    reasons = failed or [note for record in records for note in record.notes]
    if reasons:
        raise NoUpdateUsed(
            f"{who}: no client's update was used in {len(records)} rounds: {most_frequent(reasons)}"
        )
