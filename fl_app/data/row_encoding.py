"""Encoding of table rows as vectors: scaled numbers and one-hot categories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

MISSING = "missing"

Row = dict[str, str]


@dataclass(frozen=True, eq=False)
class RowEncoding:
    """All that was learnt from the rows it was fitted on."""

    numbers: tuple[str, ...]
    median: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    categories: tuple[tuple[str, str], ...]
    """Column and value; a value that is not among them is all zeros."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the vector's entries."""
        return self.numbers + tuple(f"{column}={value}" for column, value in self.categories)

    def encode(self, rows: Sequence[Row]) -> np.ndarray:
        """Return (N, F) in float32."""
        numbers = read_numbers(rows, self.numbers)
        filled = np.where(np.isnan(numbers), self.median, numbers)
        ones = [[read_category(row, column) == value for column, value in self.categories] for row in rows]
        scaled = (filled - self.mean) / self.std
        return np.concatenate([scaled, np.array(ones, dtype=np.float64)], axis=1).astype(np.float32)

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON knows it."""
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> RowEncoding:
        """Return the encoding from the output of `to_plain`, checked."""
        numbers = tuple(plain["numbers"])
        scales = {name: np.array(plain[name], dtype=np.float64) for name in ("median", "mean", "std")}
        for name, values in scales.items():
            if values.shape != (len(numbers),) or not np.isfinite(values).all():
                raise ValueError(f"RowEncoding: {name} must be {len(numbers)} finite numbers, got {values}")
        if (scales["std"] <= 0).any():
            raise ValueError(f"RowEncoding: std must be positive, got {scales['std']}")
        return cls(
            numbers=numbers,
            categories=tuple((str(column), str(value)) for column, value in plain["categories"]),
            **scales,
        )


def read_numbers(rows: Iterable[Row], names: Sequence[str]) -> np.ndarray:
    """Return the values (N, F) with NaN where there is none."""

    def number(row: Row, name: str) -> float:
        if name not in row:
            raise ValueError(f"a row must have a column {name}, got {', '.join(row)}")
        text = row[name].strip()
        try:
            return float(text) if text and text != "NA" else float("nan")
        except ValueError:
            raise ValueError(f"{name} must be a number, got {text!r}") from None

    return np.array([[number(row, name) for name in names] for row in rows], dtype=np.float64)


def read_category(row: Row, column: str) -> str:
    """Return the value in a column, or that there is none."""
    text = row[column].strip()
    return text if text and text != "NA" else MISSING
