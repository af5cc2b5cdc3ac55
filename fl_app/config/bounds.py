"""Bounds of the numbers in a stranger's config that decide how much memory, time or threads a node spends."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fl_app.config.compose import ConfigError
from fl_app.config.entries import entries_of
from fl_app.config.literals import WHO

MOST: Mapping[str, float] = {
    "attention": 1 << 14,
    "attempts": 100,
    "batch_size": 1 << 16,
    "bound": 1 << 20,
    "canaries": 1 << 16,
    "chunk": 1 << 16,
    "classes": 1 << 16,
    "clients": 1 << 16,
    "decoder": 1 << 14,
    "embedding": 1 << 14,
    "encoder": 1 << 14,
    "epochs": 1000,
    "heads": 1 << 10,
    "hidden": 1 << 24,
    "inner": 1 << 16,
    "layers": 1 << 10,
    "limit_per_class": 1 << 20,
    "max_characters": 1 << 12,
    "max_seconds": 600,
    "max_tokens": 1 << 12,
    "mels": 512,
    "min_clients": 1 << 16,
    "partitions": 1 << 16,
    "per_client": 1 << 16,
    "public_steps": 1 << 16,
    "rounds": 1 << 20,
    "samples": 1 << 20,
    "second": 1 << 10,
    "seed": 2**63 - 1,
    "shape": 1 << 12,
    "size": 1 << 12,
    "steps": 1 << 16,
    "test": 1 << 20,
    "test_per_class": 1 << 16,
    "threads": 1 << 10,
    "train": 1 << 20,
    "train_per_class": 1 << 16,
    "vocabulary": 1 << 18,
    "voters": 1 << 16,
    "width": 1 << 14,
}
"""Largest value by a key's last name; numbers in a list go by the list's name."""
MOST_ARGUMENT = 1 << 16
"""Largest value below a key ``arguments``: such as a partitioner's number of partitions."""
MOST_ELSEWHERE = 1e12
"""Largest value of all other numbers: rates, factors, seconds of the server."""
LEAST: Mapping[str, float] = {"alpha": 1e-3}
MOST_BYTES = 1 << 30
"""Most bytes of samples that a config makes or loads, one byte a number."""
MOST_ENTRIES_OF_A_SAMPLE = 1 << 22


def check_bounds(config: Mapping[str, Any]) -> None:
    """Refuse a number beyond its bound, and data sets that would not fit into memory."""
    for entry in entries_of(config):
        if entry.path[0] in ("attack", "strategy", "engine", "audit", "choices"):
            continue  # the server's own affair: no client builds any of it
        value = entry.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        names = [part for part in entry.path if not part.isdigit()]
        elsewhere = MOST_ARGUMENT if "arguments" in names else MOST_ELSEWHERE
        most, least = MOST.get(names[-1], elsewhere), LEAST.get(names[-1], -math.inf)
        if not (least <= value and abs(value) <= most):  # so is no NaN
            raise ConfigError(f"{WHO}: {entry.key} must be at most {most:g} in size, got {value!r}")
    _check_data(config.get("data") or {})


def check_shape(shape: tuple[int, ...]) -> None:
    """Refuse samples that are too large to be handled one by one."""
    entries = math.prod(shape)
    if entries > MOST_ENTRIES_OF_A_SAMPLE:
        raise ConfigError(f"{WHO}: a sample may have {MOST_ENTRIES_OF_A_SAMPLE} entries, got {entries}")


def _check_data(data: Mapping[str, Any]) -> None:
    """Multiply out the size of a data set."""
    size, shape = data.get("size"), data.get("shape")
    if isinstance(shape, list) and all(isinstance(side, int) for side in shape):
        entries = math.prod(shape)
    else:
        entries = 3 * size * size if isinstance(size, int) else 1
    check_shape((entries,))

    def count(name: str) -> int:
        value = data.get(name)
        return value if isinstance(value, int) else 0

    # of the built-in pictures there are ten classes
    samples = count("train") + count("test") + 10 * (count("train_per_class") + count("test_per_class"))
    if entries * samples > MOST_BYTES:
        raise ConfigError(f"{WHO}: data: may take {MOST_BYTES} bytes, got {entries * samples}")
