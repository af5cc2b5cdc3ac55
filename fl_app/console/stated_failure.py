"""Failures that their text states in full, so that commands print it instead of a traceback."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence


class StatedFailure(RuntimeError):
    """A run or a part of it failed, and the text says why; a command prints it and exits with 1."""


def most_frequent(reasons: Sequence[str]) -> str:
    """Return the most frequent reason with its count; reasons that differ in numbers alone are one."""
    alike = [re.sub(r"\d+", "#", reason) for reason in reasons]
    kind, times = Counter(alike).most_common(1)[0]
    return f"{reasons[alike.index(kind)]} ({times} of {len(reasons)} failures)"
