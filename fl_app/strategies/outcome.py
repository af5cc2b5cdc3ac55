"""Outcome of the rounds of one start: a run that used no client's update has failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from fl_app.console.stated_failure import StatedFailure
from fl_app.results import Round


class NoUpdateUsed(StatedFailure):
    """Every round ended without a usable update, so the model is the initial one."""


def check_used(who: str, records: Sequence[Round]) -> None:
    """Raise `NoUpdateUsed` with the most frequent reason if no round used an update and something failed.

    An update that an active attack took, or an empty draw under differential privacy, is no failure.
    """
    if any(record.clients or record.attacked for record in records):
        return
    reasons = [failure.reason or "no reason" for record in records for failure in record.failures]
    reasons = reasons or [note for record in records for note in record.notes]
    if not reasons:
        return
    # clients give the same reason with numbers of their own
    alike = Counter(_without_numbers(reason) for reason in reasons)
    (kind, times), others = alike.most_common(1)[0], len(alike) - 1
    example = next(reason for reason in reasons if _without_numbers(reason) == kind)
    more = f", and {others} other reason{'s' if others > 1 else ''}" if others else ""
    raise NoUpdateUsed(
        f"{who}: no client's update was used in {len(records)} rounds; most frequent reason, {times} of "
        f"{len(reasons)} times{more}: {example}"
    )


def _without_numbers(reason: str) -> str:
    return re.sub(r"\d+", "#", reason)
