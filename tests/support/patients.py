"""Small tables in the form of SUPPORT2."""

from __future__ import annotations

import csv
from pathlib import Path

from fl_app.data.hospital import CATEGORIES, LEFT_OUT, TARGET

HEADER = [TARGET, *sorted(LEFT_OUT), *CATEGORIES, "age", "alb"]


def patient(index: int, **values: object) -> dict[str, str]:
    """Every fourth patient dies; whatever must not be used says so."""
    row = {name: f"leak{index % 4}" for name in LEFT_OUT}
    row |= {TARGET: str(int(index % 4 == 0)), "age": f" {40 + index}", "alb": str(index / 10)}
    row |= {"sex": "male", "dzgroup": "CHF", "dzclass": "Cancer", "income": "", "race": "white", "ca": "no"}
    return row | {name: str(value) for name, value in values.items()}


def write_patients(folder: Path, rows: list[dict[str, str]], header: list[str] = HEADER) -> Path:
    with (folder / "support2.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, header, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return folder
