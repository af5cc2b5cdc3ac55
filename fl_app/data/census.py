"""UCI Adult (Becker and Kohavi, 1996): people of the 1994 census, labelled by income above 50,000 dollars."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.facts import Facts
from fl_app.data.places import DataUnavailable
from fl_app.data.row_encoding import MISSING, Row, RowEncoding, read_category, read_numbers

COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)
NUMBERS = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
CATEGORIES = tuple(name for name in COLUMNS[:-1] if name not in NUMBERS)
CLASS_NAMES = ("at most 50K", "above 50K")


def adult(root: str | Path, limit: int | None = None) -> Dataset:
    """Return the people in ``root``/adult.data and adult.test, or below ``root``/adult.

    Numbers have mean 0 and deviation 1 over the training rows; a category is a column of zeros and ones,
    "missing" among them. ``limit`` takes the first rows of each file.
    """
    if limit is not None and limit < 2:
        raise ValueError(f"adult: limit must be null or at least 2, got {limit}")
    folder = _folder(Path(root).expanduser())
    (train, train_labels), (test, test_labels) = (
        _read(folder / name, limit) for name in ("adult.data", "adult.test")
    )
    encoding = fit_encoding(train)
    return Dataset(
        name="adult",
        train=Samples(torch.from_numpy(encoding.encode(train)), train_labels),
        test=Samples(torch.from_numpy(encoding.encode(test)), test_labels),
        num_classes=2,
        in_shape=(len(encoding.names),),
        mean=(),
        std=(),
        class_names=CLASS_NAMES,
        feature_names=encoding.names,
        encoding=encoding,
    )


def own_people(root: Path, facts: Facts, limit: int | None = None, **settings: Any) -> Samples:
    """Return the people in ``root``/adult.data, encoded with the server's statistics."""
    if facts.encoding is None:
        raise ValueError("adult: the server says nothing of how to encode a row")
    rows, labels = _read(_folder(root) / "adult.data", limit)
    return Samples(torch.from_numpy(facts.encoding.encode(rows)), labels)


def fit_encoding(rows: Sequence[Row]) -> RowEncoding:
    """Learn scales and categories from ``rows``."""
    numbers = read_numbers(rows, NUMBERS)
    std = numbers.std(axis=0)
    return RowEncoding(
        numbers=NUMBERS,
        median=np.median(numbers, axis=0),
        mean=numbers.mean(axis=0),
        std=np.where(std > 0, std, 1.0),
        categories=tuple(
            (column, value)
            for column in CATEGORIES
            for value in sorted({read_category(row, column) for row in rows})
        ),
    )


def _read(path: Path, limit: int | None) -> tuple[list[Row], torch.Tensor]:
    try:
        with path.open(newline="") as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file) if len(row) > 1]
    except OSError as error:
        hint = "put the files of archive.ics.uci.edu's Adult there, or set data.root"
        raise DataUnavailable(f"adult: cannot read {path}: {error.strerror}; {hint}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"adult: {path} is not a table: {error}") from error
    if lines and lines[0][0] == COLUMNS[0]:
        lines = lines[1:]
    uneven = [number for number, line in enumerate(lines, 1) if len(line) != len(COLUMNS)]
    if uneven or not lines:
        raise ValueError(
            f"adult: {path} must have rows of {len(COLUMNS)} cells, row {uneven[0] if uneven else 1} has not"
        )
    rows = [
        {name: MISSING if cell == "?" else cell for name, cell in zip(COLUMNS, line, strict=True)}
        for line in lines[:limit]
    ]
    return rows, torch.tensor([_label(row, path) for row in rows])


def _label(row: Row, path: Path) -> int:
    # the test file ends its labels with a full stop
    text = row["income"].rstrip(".")
    if text not in ("<=50K", ">50K"):
        raise ValueError(f"adult: {path}: income must be <=50K or >50K, got {text!r}")
    return int(text == ">50K")


def _folder(root: Path) -> Path:
    return root / "adult" if (root / "adult" / "adult.data").is_file() else root
