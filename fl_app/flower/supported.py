"""Supported versions of Flower: a run with another one is refused at import."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

OLDEST, BEFORE = (1, 40), (1, 42)
"""The range of versions that pass the tests: from OLDEST on, and below BEFORE."""


def refuse_unsupported() -> None:
    """Raise an ImportError if the installed Flower is missing or outside the range."""
    wanted = f"flwr[simulation]>={_text(OLDEST)},<{_text(BEFORE)}"
    try:
        found = version("flwr")
    except PackageNotFoundError:
        raise ImportError(f"fl-app needs Flower, which is not installed: pip install '{wanted}'") from None
    if not OLDEST <= _numbers(found) < BEFORE:
        raise ImportError(
            f"fl-app works with Flower from {_text(OLDEST)} on and below {_text(BEFORE)}, and {found} is "
            f"installed: pip install '{wanted}'"
        )


def _numbers(found: str) -> tuple[int, int]:
    """Return the first two numbers of a version; (0, 0) if it has no such."""
    parts = found.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and all(map(str.isdecimal, parts[:2])) else (0, 0)


def _text(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"
