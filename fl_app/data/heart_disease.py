"""UCI Heart Disease (Detrano et al., 1989): four hospitals, prepared as FLamby's Fed-Heart-Disease.

Columns with many gaps are dropped, then rows with any; two categories become indicators without their first
level. Of each hospital a stratified 66 % is for training, and its own training rows scale its features.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.facts import Facts
from fl_app.data.places import DataUnavailable

CENTRES = ("cleveland", "hungarian", "switzerland", "va")
CLASS_NAMES = ("healthy", "heart disease")
COLUMNS = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak")
"""Columns of a file in its order; then come three that are dropped, and the diagnosis."""
DROPPED = ("slope", "ca", "thal")
LEVELS = {"cp": (2.0, 3.0, 4.0), "restecg": (1.0, 2.0)}
"""Levels with an indicator; the first level of each has none."""
FEATURES = tuple(name for name in COLUMNS if name not in LEVELS) + tuple(
    f"{name}={level:g}" for name, levels in LEVELS.items() for level in levels
)
_SPLIT, _TRAIN = 43, 0.66


def heart_disease(root: str | Path, *, scaled_together: bool = False) -> Dataset:
    """Return the patients of the four hospitals in ``root``/processed.<centre>.data, or below heart-disease.

    A sample's source is its hospital: with partition=natural and four clients, each is one of them.
    ``scaled_together`` scales by the training rows of all hospitals, which no federation can: that is
    FLamby's pooled data set.
    """
    folder = _folder(Path(root).expanduser())
    parts = {centre: _split(*read_centre(folder / _name(centre))) for centre in CENTRES}
    everyone = np.concatenate([parts[centre][0][0] for centre in CENTRES])
    for centre, ((train_x, train_y), (test_x, test_y)) in parts.items():
        by = everyone if scaled_together else train_x
        parts[centre] = (_scaled(train_x, by), train_y), (_scaled(test_x, by), test_y)
    train, test = (
        Samples(
            torch.cat([torch.from_numpy(parts[centre][which][0]) for centre in CENTRES]),
            torch.cat([torch.from_numpy(parts[centre][which][1]) for centre in CENTRES]),
            torch.cat([torch.full((len(parts[c][which][1]),), i) for i, c in enumerate(CENTRES)]),
        )
        for which in (0, 1)
    )
    return Dataset(
        name="heart_disease",
        train=train,
        test=test,
        num_classes=len(CLASS_NAMES),
        in_shape=(len(FEATURES),),
        mean=(),
        std=(),
        class_names=CLASS_NAMES,
        feature_names=FEATURES,
        source_names=CENTRES,
        source_kind="hospital",
    )


def own_centre(root: Path, facts: Facts, **settings: Any) -> Samples:
    """Return the patients of the one file processed.*.data in ``root``, scaled by themselves."""
    files = sorted(root.glob("processed.*.data"))
    if len(files) != 1:
        raise ValueError(f"heart_disease: {root} must have one file processed.*.data, has {len(files)}")
    features, labels = read_centre(files[0])
    return Samples(torch.from_numpy(_scaled(features, features)), torch.from_numpy(labels))


def read_centre(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the features (N, 13) of the rows without gaps, before scaling, and the labels (N,)."""
    try:
        with path.open(newline="") as file:
            rows = [row for row in csv.reader(file) if row]
    except OSError as error:
        hint = "put the files of archive.ics.uci.edu's Heart Disease there, or set data.root"
        raise DataUnavailable(f"heart_disease: cannot read {path}: {error.strerror}; {hint}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"heart_disease: {path} is not a table: {error}") from error
    if rows and rows[0][0].strip() == COLUMNS[0]:
        rows = rows[1:]
    width = len(COLUMNS) + len(DROPPED) + 1
    numbers = [_numbers(row, width, path, line) for line, row in enumerate(rows, 1)]
    complete = np.array([row for row in numbers if row is not None], dtype=np.float64).reshape(-1, width - 3)
    if len(complete) < 4:
        raise ValueError(f"heart_disease: {path} must have at least 4 rows without gaps, has {len(complete)}")
    by_name = dict(zip(COLUMNS, complete.T, strict=False))
    plain = [by_name[name] for name in COLUMNS if name not in LEVELS]
    shown = [by_name[name] == level for name, levels in LEVELS.items() for level in levels]
    labels = (complete[:, -1] != 0).astype(np.int64)
    return np.stack([*plain, *shown], axis=1).astype(np.float32), labels


def _numbers(row: Sequence[str], width: int, path: Path, line: int) -> list[float] | None:
    """Return a row's usable columns and its diagnosis; None if one of them is missing."""
    if len(row) != width:
        raise ValueError(f"heart_disease: {path}: row {line} must have {width} cells, has {len(row)}")
    cells = [cell.strip() for cell in (*row[: len(COLUMNS)], row[-1])]
    if any(cell in ("", "?") for cell in cells):
        return None
    try:
        found = [float(cell) for cell in cells]
    except ValueError as error:
        raise ValueError(f"heart_disease: {path}: row {line}: {error}") from error
    if not np.isfinite(found).all():
        raise ValueError(f"heart_disease: {path}: row {line} must have finite numbers, got {cells}")
    return found


Rows = tuple[np.ndarray, np.ndarray]


def _split(features: np.ndarray, labels: np.ndarray) -> tuple[Rows, Rows]:
    """Return features and labels of the training rows, and of the test rows."""
    counts = np.bincount(labels, minlength=2)
    stratify = labels if counts.min() > 2 else None
    train, test = train_test_split(
        np.arange(len(labels)),
        test_size=1.0 - _TRAIN,
        train_size=_TRAIN,
        random_state=_SPLIT,
        shuffle=True,
        stratify=stratify,
    )
    train, test = np.sort(train), np.sort(test)
    return (features[train], labels[train]), (features[test], labels[test])


def _scaled(features: np.ndarray, by: np.ndarray) -> np.ndarray:
    # the deviation of a sample, as torch computes it
    scale = by.std(axis=0, ddof=1) + 1e-9
    scaled: np.ndarray = (features - by.mean(axis=0)) / scale
    return scaled.astype(np.float32)


def _name(centre: str) -> str:
    return f"processed.{centre}.data"


def _folder(root: Path) -> Path:
    below = root / "heart-disease"
    return below if not (root / _name(CENTRES[0])).is_file() and below.is_dir() else root
