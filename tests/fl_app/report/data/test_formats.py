from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.report.data.formats import (
    format_bytes,
    format_factor,
    format_number,
    format_percent,
    format_psnr,
    format_seconds,
)

UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.00 kB"),
        (1000, "1.00 kB"),
        (9_994, "9.99 kB"),
        (9_996, "10.0 kB"),
        (99_960, "100 kB"),
        (126_608, "127 kB"),
        (999_499, "999 kB"),
        (999_500, "1.00 MB"),
        (1_266_080, "1.27 MB"),
        (25_321_600_000, "25.3 GB"),
        (3.2e15, "3200 TB"),
        (None, "–"),
        (math.inf, "–"),
    ],
)
def test_bytes_are_written_in_thousands(count, text):
    assert format_bytes(count) == text


@given(st.integers(min_value=1, max_value=10**14))
def test_written_bytes_are_right_to_half_a_percent_and_never_have_four_digits(count):
    number, unit = format_bytes(count).split()
    assert float(number) * UNITS[unit] == pytest.approx(count, rel=0.00501)
    assert float(number) < 1000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (7.46, "7.5 s"),
        (89.9, "89.9 s"),
        (90, "1 min 30 s"),
        (3599.6, "1 h 00 min"),
        (None, "–"),
    ],
)
def test_durations_read_as_spoken(seconds, text):
    assert format_seconds(seconds) == text


def test_a_perfect_reconstruction_has_infinite_psnr():
    assert format_psnr(math.inf) == "∞ dB"
    assert format_psnr(24.126) == "24.13 dB"
    assert format_number(-math.inf, 2) == "-∞"


def test_shares_and_factors():
    assert format_percent(0.6123) == "61.2 %"
    assert format_factor(1000, 40) == "25×"
    assert format_factor(1000, 3000) == "0.333×"
    assert [format_factor(None, 1), format_factor(1, None), format_factor(1, 0)] == ["–"] * 3
