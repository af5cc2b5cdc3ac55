"""Look for a data set in the places where it may be, and say of each why it was not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from fl_app.console.stated_failure import StatedFailure

Found = TypeVar("Found")


class DataUnavailable(StatedFailure):
    """The data is not in this place; another place may have it."""


def first_available(who: str, source: str, places: Mapping[str, Callable[[], Found]]) -> Found:
    """Return the data of the place named ``source``; "auto" takes the first place that has it."""
    if source != "auto" and source not in places:
        raise ValueError(f"{who}: source must be one of {', '.join(['auto', *places])}; got {source!r}")
    reasons = []
    for name in places if source == "auto" else [source]:
        try:
            return places[name]()
        except DataUnavailable as reason:
            reasons.append(f"{name}: {reason}")
    raise DataUnavailable(f"{who} was not found. Tried " + "; ".join(reasons))
