"""SUPPORT2 (Knaus et al., 1995): 9,105 seriously ill adults, labelled by death in hospital.

Only values known early in the stay are used: neither outcomes nor forecasts by a person or a model.
Fill-in values, scales and categories are learnt from the training rows alone.
"""

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
from fl_app.data.row_encoding import Row, RowEncoding, read_category, read_numbers
from fl_app.data.shares import mark_share
from fl_app.seeding import SERVER, generator_for

FILE = "support2.csv"
TARGET = "hospdead"
CLASS_NAMES = ("left alive", "died in hospital")
LEFT_OUT = frozenset(
    {
        # a number for the row
        "sno",
        # known only after the stay
        *("death", "d.time", "slos", "charges", "totcst", "totmcst", "avtisst", "sfdm2", "dnr", "dnrday"),
        # forecasts of a model or a physician, and a score that is imputed from later answers
        *("surv2m", "surv6m", "prg2m", "prg6m", "adlsc"),
    }
)
CATEGORIES = ("sex", "dzgroup", "dzclass", "income", "race", "ca")


def support2(root: str | Path, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Return the patients in ``root``/support2.csv.

    Of each class ``test_fraction``, drawn by ``seed``, is for testing. Numbers have
    mean 0 and deviation 1 over the training rows, and a missing one is their median.
    A category is a column of zeros and ones, "missing" among them.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"support2: test_fraction must be in (0, 1), got {test_fraction}")
    path = Path(root).expanduser() / FILE
    rows = _read(path)
    labels = torch.tensor([_label(row, path) for row in rows])
    is_test = mark_share(
        labels, test_fraction, lambda label: generator_for(seed, 0, SERVER, f"support2/{label}/test")
    )
    encoding = fit_encoding([row for row, test in zip(rows, is_test.tolist(), strict=True) if not test])
    inputs = torch.from_numpy(encoding.encode(rows))
    return Dataset(
        name="support2",
        train=Samples(inputs[~is_test], labels[~is_test]),
        test=Samples(inputs[is_test], labels[is_test]),
        num_classes=len(CLASS_NAMES),
        in_shape=(len(encoding.names),),
        mean=(),
        std=(),
        class_names=CLASS_NAMES,
        feature_names=encoding.names,
        encoding=encoding,
    )


def own_patients(root: Path, facts: Facts, **settings: Any) -> Samples:
    """Return all patients in ``root``/support2.csv, encoded with the server's statistics."""
    if facts.encoding is None:
        raise ValueError("support2: the server says nothing of how to encode a row")
    path = root / FILE
    rows = _read(path)
    labels = torch.tensor([_label(row, path) for row in rows])
    return Samples(torch.from_numpy(facts.encoding.encode(rows)), labels)


def fit_encoding(rows: Sequence[Row]) -> RowEncoding:
    """Learn medians, scales and categories from ``rows``."""
    names = tuple(name for name in rows[0] if name not in LEFT_OUT | {TARGET, *CATEGORIES})
    numbers = read_numbers(rows, names)
    empty = [name for name, column in zip(names, numbers.T, strict=True) if np.isnan(column).all()]
    if empty:
        raise ValueError(f"support2: no training row has a value of {', '.join(empty)}")
    median = np.nanmedian(numbers, axis=0)
    filled = np.where(np.isnan(numbers), median, numbers)
    std = filled.std(axis=0)
    return RowEncoding(
        numbers=names,
        median=median,
        mean=filled.mean(axis=0),
        std=np.where(std > 0, std, 1.0),
        categories=tuple(
            (column, value)
            for column in CATEGORIES
            for value in sorted({read_category(row, column) for row in rows})
        ),
    )


def _read(path: Path) -> list[Row]:
    try:
        with path.open(newline="") as file:
            rows = [dict(row) for row in csv.DictReader(file)]
    except csv.Error as error:
        raise ValueError(f"support2: {path} is not a table: {error}") from error
    except OSError as error:
        hint = "put the file of hbiostat.org/data there, or set data.root"
        raise DataUnavailable(f"support2: cannot read {path}: {error.strerror}; {hint}") from error
    missing = sorted({TARGET, *CATEGORIES, *LEFT_OUT} - set(rows[0] if rows else ()))
    if missing:
        raise ValueError(
            f"support2: {path} must have the columns of SUPPORT2, but lacks {', '.join(missing)}"
        )
    # the reader fills a short row with None and puts the rest of a long one under None
    uneven = [i for i, row in enumerate(rows, 2) if None in row or None in row.values()]
    if uneven:
        raise ValueError(f"support2: {path}: line {uneven[0]} must have as many cells as the first")
    return rows


def _label(row: Row, path: Path) -> int:
    text = row[TARGET].strip()
    if text not in ("0", "1"):
        raise ValueError(f"support2: {path}: {TARGET} must be 0 or 1, got {text!r}")
    return int(text)
