"""Scores of a study by unit, as the rows of units.csv: one number of one image, one update or one run."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from fl_app.results.reading import ResultError
from fl_app.results.writing import write_text

UNITS = "units.csv"
UNITS_SCHEMA = 1
"""The version of units.csv; a reader refuses a later one."""


class Unit(NamedTuple):
    """One score; every field but the value names it, and is empty where it does not apply."""

    cell: str
    """The cell's name in study.json."""
    kind: str
    """`run`, `update` or `image`."""
    attack: str
    form: str
    """`plain` or `adaptive`."""
    update: str
    against: str
    """`trained` if compared with what the defense trained on."""
    labels: str
    """`granted` or `inferred`."""
    round: str
    client: str
    position: str
    """Place in the batch."""
    sample: str
    """Hash of the true sample; of an update, those of its samples."""
    model: str
    """Hash of the model that the update was computed with."""
    metric: str
    value: float

    @property
    def name(self) -> tuple[str, ...]:
        """Everything but the value and the hashes: two measurements of the same unit share it."""
        return tuple(
            str(getattr(self, key)) for key in self._fields if key not in ("sample", "model", "value")
        )

    @property
    def in_words(self) -> str:
        """The unit for a reader."""
        named = (("round", self.round), ("client", self.client), ("image", self.position))
        where = [self.attack, self.form, self.update, *(f"{key} {value}" for key, value in named if value)]
        return " ".join([self.cell, *(word for word in where if word), self.metric])


def write_units(units: Iterable[Unit], folder: Path) -> None:
    """Write units.csv into ``folder``; a value reads back as the same number."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["schema", *Unit._fields])
    table.writerows([UNITS_SCHEMA, *unit[:-1], repr(unit.value)] for unit in units)
    write_text(folder / UNITS, text.getvalue())


def read_units(folder: Path) -> list[Unit]:
    """Read units.csv from ``folder``; every failure is a `ResultError`."""
    path = folder / UNITS
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            header, *rows = csv.reader(stream)
        if header != ["schema", *Unit._fields]:
            raise ValueError(f"expected the columns schema, {', '.join(Unit._fields)}, got {header[:3]}…")
        if later := next((row[0] for row in rows if row[0] != str(UNITS_SCHEMA)), None):
            raise ValueError(f"expected version {UNITS_SCHEMA} in each line, got {later!r}")
        named = [dict(zip(header[1:-1], row[1:-1], strict=True)) for row in rows]
        return [Unit(**names, value=float(row[-1])) for names, row in zip(named, rows, strict=True)]
    except (OSError, ValueError, TypeError, IndexError, csv.Error) as error:
        raise ResultError(f"{path}: {error}") from error
