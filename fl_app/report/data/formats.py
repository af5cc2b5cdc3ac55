"""Formats of numbers: one spelling for each quantity, and a dash for an unknown value."""

from __future__ import annotations

import math

DASH = "–"


def format_bytes(count: float | None) -> str:
    """Write a byte count with decimal prefixes: 1 kB = 1000 bytes."""
    if count is None or math.isinf(count):
        return DASH
    if abs(count) < 999.5:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB"):
        count /= 1000
        # 999.5 and more would round up to a fourth digit
        if abs(count) < 999.5:
            return f"{_three_digits(count)} {unit}"
    return f"{_three_digits(count / 1000)} TB"


def format_percent(share: float | None) -> str:
    """Write a share in [0, 1] as percent with one decimal."""
    return DASH if share is None else f"{share * 100:.1f} %"


def format_best(share: float | None, chosen_by: str | None) -> str:
    """Write the accuracy of the best round and which samples chose it: the test samples flatter."""
    return f"{format_percent(share)} (chosen by {chosen_by})" if chosen_by else format_percent(share)


def format_number(value: float | None, decimals: int) -> str:
    """Write a number with fixed decimals; ∞ for a perfect PSNR."""
    if value is None:
        return DASH
    return ("∞" if value > 0 else "-∞") if math.isinf(value) else f"{value:.{decimals}f}"


def format_psnr(value: float | None) -> str:
    """Write a PSNR with its unit."""
    return DASH if value is None else f"{format_number(value, 2)} dB"


def format_short(value: float | None) -> str:
    """Write a number of unknown size in four significant digits."""
    if value is None:
        return DASH
    return format_number(value, 0) if math.isinf(value) else f"{value:.4g}"


def format_count(value: float | None) -> str:
    """Write a count with thin spaces between thousands."""
    return DASH if value is None or math.isinf(value) else f"{value:,.0f}".replace(",", "\u2009")


def format_seconds(value: float | None) -> str:
    """Write a duration as a person would say it."""
    if value is None or math.isinf(value):
        return DASH
    if value < 90:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def format_factor(dense: float | None, used: float | None) -> str:
    """Write how many times fewer bytes were ``used`` than ``dense``."""
    return f"{dense / used:.3g}×" if dense and used else DASH


def _three_digits(value: float) -> str:
    # 9.995 and 99.95 are where one more digit before the point appears
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"
