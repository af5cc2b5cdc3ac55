"""Exits: how many planted bits leave a client by each channel but the declared update."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fl_app.audit.channels import Reading
from fl_app.audit.findings import Finding
from fl_app.audit.planting import BLOCKS, SAMPLES

_CHANCE = 0.005
"""Largest expected number of agreements by chance at which a single one counts."""
_MANY_BITS = 8
_LONG_TEXT = 16
"""Characters of a text from which one that changes with the data counts as high."""
_MANY_NUMBERS = 8
_WORD_BITS = 53
"""Bits of a whole number that a float64 holds exactly."""
_DECIMALS = 15
"""Decimal digits that a float64 keeps."""
_DIGITS = 64 + _DECIMALS
"""Digits that are tried of each number."""


@dataclass(frozen=True)
class Exit:
    """One channel, as measured."""

    name: str
    kind: str
    size: int
    """Numbers or characters that it holds."""
    changes: bool
    """Whether it changes with the data and not by itself."""
    repeats: bool
    """Whether the same data give the same content."""
    told: tuple[int, ...]
    """Planted bits that can be read off it without knowing the data, by number."""
    capacity: float
    """Bits that it could carry in one reply."""
    pixels: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Planted input bit that each component shows, and whether it is negated."""

    @property
    def bits(self) -> int:
        """Number of planted bits that can be read off it."""
        return len(self.told)


@dataclass(frozen=True)
class ExitReport:
    """Exits of an app, and how they were measured."""

    exits: list[Exit]
    runs: int
    places: list[str]
    chance: float
    """Expected number of planted bits with which one number agrees by chance."""

    @property
    def decisive(self) -> bool:
        """Whether there were enough runs to tell a single bit from chance."""
        return self.chance < _CHANCE

    @property
    def decoded(self) -> list[Exit]:
        """Channels off which planted bits were read."""
        return [channel for channel in self.exits if channel.bits]


def measure_exits(
    readings: Sequence[Mapping[str, Reading]],
    bits: np.ndarray,
    again: Mapping[str, Reading],
    places: Sequence[str],
) -> ExitReport:
    """Compare the channels of runs with the bits (runs, planted) that were planted in them.

    ``again`` repeats the first run: a channel that differs there changes by itself, like a clock.
    """
    names = list(dict.fromkeys(name for reading in readings for name in reading))
    each = _by_chance(len(readings), bits.shape[1])
    measured = [_measure(name, readings, bits, again) for name in names]
    alone = [m for m in measured if m.channel.changes and m.channel.size == 1]
    kept = []
    for own in measured:
        group = alone if own.channel.size == 1 else [own]
        expected = sum(m.tried * m.chance for m in group)
        values = _beyond_chance(sum(len(m.by_value) for m in group), expected)
        digits = _beyond_chance(sum(len(m.by_digit) for m in group), _DIGITS * expected)
        told = (own.by_value if values else set()) | (own.by_digit if digits else set())
        pixels = own.channel.pixels if values else {}
        kept.append(replace(own.channel, told=tuple(sorted(told)), pixels=pixels))
    return ExitReport(kept, len(readings), list(places), each)


def _measure(
    name: str, readings: Sequence[Mapping[str, Reading]], bits: np.ndarray, again: Mapping[str, Reading]
) -> _Measured:
    """Measure one channel; in runs in which the client answered with an error there is no other."""
    error = name.partition(":")[0] + ": error"
    rows = [i for i, r in enumerate(readings) if name == error or error not in r]
    repeated = again.get(name)
    found = _exit(name, [readings[i].get(name) for i in rows], bits[rows], repeated if rows[0] == 0 else None)
    return replace(found, chance=_by_chance(len(rows), bits.shape[1]))


def exit_findings(report: ExitReport) -> list[Finding]:
    """Return the findings of exits."""
    findings = []
    groups = [[c] for c in report.decoded if c.size > 1]
    groups.append([c for c in report.decoded if c.size == 1])
    for group in filter(None, groups):
        bits = len({bit for channel in group for bit in channel.told})
        name = f"“{group[0].name}”" + (f" and {len(group) - 1} more" if len(group) > 1 else "")
        findings.append(
            Finding(
                "data-in-exit",
                "high" if bits >= _MANY_BITS else "medium",
                f"The client's data leave by {name}: {bits} of {SAMPLES * (BLOCKS * BLOCKS + 1)} planted "
                "bits were read off.",
                "",
                f"{bits} bits a reply by {name}",
                "0 bits",
            )
        )
    for channel in report.exits:
        if channel.changes and not channel.bits and _carries_much(channel):
            findings.append(
                Finding(
                    "data-dependent-exit",
                    _severity(channel),
                    f"The channel “{channel.name}” holds {channel.size} values and changes with the client's "
                    f"data: it could carry {channel.capacity:.0f} bits a reply.",
                    "",
                    f"up to {channel.capacity:.0f} bits a reply by “{channel.name}”",
                    "0 bits",
                )
            )
    # a hundred metrics of one number each are a channel, too
    single = [c for c in report.exits if c.changes and not c.bits and c.kind == "metric" and c.size == 1]
    if len(single) >= 4 * _MANY_NUMBERS:
        findings.append(
            Finding(
                "many-metrics",
                "medium",
                f"{len(single)} metrics change with the client's data; together they could carry "
                f"{sum(c.capacity for c in single):.0f} bits a reply.",
                "",
                f"{len(single)} metrics",
                "",
            )
        )
    return findings


def hidden_picture(channels: Sequence[Exit], contents: Mapping[str, Reading]) -> np.ndarray | None:
    """Return the picture that an honest round's channels show, by where planted pixels came out; or None."""
    canvas = np.full((SAMPLES, BLOCKS * BLOCKS), np.nan)
    for channel in channels:
        content = contents.get(channel.name)
        if content is None:
            continue
        values = content.values
        places: dict[int, list[float]] = {}
        for component, (bit, negated) in channel.pixels.items():
            if component < len(values):
                places.setdefault(bit, []).append(-values[component] if negated else values[component])
        for bit, found in places.items():
            canvas[bit // (BLOCKS * BLOCKS), bit % (BLOCKS * BLOCKS)] = float(np.mean(found))
    full = np.isfinite(canvas).sum(axis=1)
    row = int(full.argmax())
    if full[row] < BLOCKS:
        return None
    picture = canvas[row]
    low, high = np.nanmin(picture), np.nanmax(picture)
    scaled: np.ndarray = (picture - low) / (high - low) if high > low else np.zeros_like(picture)
    scaled[np.isnan(scaled)] = 0.0
    return scaled.reshape(BLOCKS, BLOCKS)


@dataclass(frozen=True)
class _Measured:
    """A channel with the planted bits that its values tell, and those that single digits of them tell."""

    channel: Exit
    by_value: set[int] = field(default_factory=set)
    by_digit: set[int] = field(default_factory=set)
    chance: float = 0.0
    """Expected number of planted bits with which one component agrees by chance."""
    tried: int = 0
    """Components that differ from each other and between runs: each may agree with a bit by chance."""


def _exit(name: str, seen: Sequence[Reading | None], bits: np.ndarray, again: Reading | None) -> _Measured:
    present = [reading for reading in seen if reading is not None]
    first = present[0]
    size = max(len(reading.values) for reading in present)
    table = np.full((len(seen), size), np.nan)
    for row, reading in enumerate(seen):
        if reading is not None:
            table[row, : len(reading.values)] = reading.values
    begun = seen[0]
    if begun is None or again is None:
        same = begun is None and again is None
    else:
        same = np.array_equal(begun.values, again.values, equal_nan=True)
    changes = same and not np.all((table == table[0]) | (np.isnan(table) & np.isnan(table[0])))
    if not changes:
        return _Measured(Exit(name, first.kind, size, False, same, (), 0.0))
    # a value that is missing tells as much as one that is there
    whole = np.where(np.isnan(table), np.nanmin(table, initial=0.0) - 1.0, table)
    moving = [c for c in range(size) if not np.all(whole[:, c] == whole[0, c])]
    found = [(c, bit, negated) for c in moving for bit, negated in _told(whole[:, c], bits)]
    digits = {
        bit for c in moving for digit in _digits(np.nan_to_num(table[:, c])) for bit, _ in _told(digit, bits)
    }
    pixels = {c: (bit, negated) for c, bit, negated in found if bit < SAMPLES * BLOCKS * BLOCKS}
    each = 8.0 if first.text else 64.0 if first.kind not in ("size", "count") else math.log2(len(seen))
    channel = Exit(name, first.kind, size, True, True, (), each * len(moving), pixels)
    ranks = [np.unique(whole[:, c], return_inverse=True)[1] for c in moving]
    tried = len({min(rank.tobytes(), (rank.max() - rank).tobytes()) for rank in ranks})
    return _Measured(channel, {bit for _, bit, _ in found}, digits, tried=tried)


def _digits(values: np.ndarray) -> Iterator[np.ndarray]:
    """Yield digits of numbers that differ: binary ones of whole numbers or of float64s, and decimal ones."""
    if np.all(values == values.round()) and np.abs(values).max() < 2.0**_WORD_BITS:
        words = np.abs(values).astype(np.int64).view(np.uint64)
        decimals = [f"{abs(int(value)):0{_DECIMALS}d}" for value in values]
    else:
        words = values.astype(np.float64).view(np.uint64)
        decimals = [f"{value:.{_DECIMALS - 1}e}".replace(".", "").lstrip("-")[:_DECIMALS] for value in values]
    for place in range(64):
        digit = ((words >> np.uint64(place)) & np.uint64(1)).astype(float)
        if 0 < digit.sum() < len(digit):
            yield digit
    for place in range(_DECIMALS):
        written = np.array([float(text[place]) for text in decimals])
        if len(set(written)) > 1:
            yield written


def _told(values: np.ndarray, bits: np.ndarray) -> list[tuple[int, bool]]:
    """Return the bits that a threshold on the values tells in every run."""
    order = np.argsort(values, kind="stable")
    ordered, steps = bits[order].astype(int), np.diff(values[order]) > 0
    ones = ordered.sum(axis=0)
    total = len(values)
    ramp = np.arange(total)[:, None]
    rising = (ordered == (ramp >= total - ones)).all(axis=0)
    falling = (ordered == (ramp < ones)).all(axis=0)
    mixed = (ones > 0) & (ones < total)
    gap_rising = np.r_[False, steps, False][total - ones]
    gap_falling = np.r_[False, steps, False][ones]
    told = [(int(bit), False) for bit in np.flatnonzero(mixed & rising & gap_rising)]
    return told + [(int(bit), True) for bit in np.flatnonzero(mixed & falling & gap_falling)]


def _by_chance(runs: int, planted: int) -> float:
    """Return the expected number of planted bits that a random order of the runs tells."""
    # bits are fair coins: a threshold at any of the runs - 1 places, rising or falling
    return planted * 2 * max(0, runs - 1) / 2.0**runs


def _beyond_chance(bits: int, expected: float) -> bool:
    """Say whether more bits were told than chance tells, of which so many are expected."""
    return expected < _CHANCE or bits > 10 * expected + 2


def _severity(channel: Exit) -> str:
    """Return how severe a channel is that changes with the data."""
    if channel.kind == "error":
        return "low"  # planted data are odd: in honest rounds the client need not fail
    if channel.kind == "names":
        return "high" if channel.capacity >= 8 * _LONG_TEXT else "medium"
    return "high" if channel.kind == "config" or channel.size >= _LONG_TEXT else "medium"


def _carries_much(channel: Exit) -> bool:
    if channel.kind in ("config", "error"):
        return True
    if channel.kind == "names":
        return True
    return channel.size >= _MANY_NUMBERS and channel.kind in ("metric", "array")
