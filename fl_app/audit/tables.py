"""Columns of local samples: an image folder, a CSV file or a text file, by split."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from PIL import Image

Columns = dict[str, list[Any]]
"""Values by column name; all columns have the same length."""

IMAGE, LABEL, TEXT = "image", "label", "text"
_PICTURES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLITS |= {"valid": "validation", "validation": "validation", "val": "validation"}
_HELD_OUT = 5
"""Without a test split, every fifth sample is one."""


def read_tables(place: Path) -> dict[str, Columns]:
    """Read the samples at ``place`` by split; without splits there, every fifth row is the test split."""
    if place.is_file():
        return _split(_read_file(place))
    if not place.is_dir():
        raise ValueError(f"--data: expected a folder or file, got {place}")
    parts = {_SPLITS[child.stem.lower()]: child for child in sorted(place.iterdir()) if _names_split(child)}
    if parts:
        found = {
            name: _read_file(part) if part.is_file() else _read_images(part) for name, part in parts.items()
        }
        if "train" not in found:
            raise ValueError(f"--data: {place}: expected a train split, got {', '.join(found)}")
        return found if len(found) > 1 else _split(found["train"])
    files = [child for child in sorted(place.iterdir()) if child.suffix.lower() in (".csv", ".txt", ".tsv")]
    if len(files) == 1:
        return _split(_read_file(files[0]))
    return _split(_read_images(place))


def class_names(columns: Columns, column: str) -> list[str]:
    """Return the distinct values of a column as text, in order."""
    return [str(value) for value in sorted(set(columns[column]))]


def _names_split(path: Path) -> bool:
    known = path.is_dir() or path.suffix.lower() in (".csv", ".txt", ".tsv")
    return known and path.stem.lower() in _SPLITS


def _read_images(folder: Path) -> Columns:
    """Read ``folder/CLASS/*.png``; classes are numbered in the order of their names."""
    classes = sorted(child for child in folder.iterdir() if child.is_dir())
    columns: Columns = {IMAGE: [], LABEL: []}
    for label, child in enumerate(classes):
        for path in sorted(child.rglob("*")):
            if path.suffix.lower() in _PICTURES:
                with Image.open(path) as picture:
                    grey = picture.mode in ("1", "L", "I;16")
                    columns[IMAGE].append(picture.convert("L" if grey else "RGB"))
                columns[LABEL].append(label)
    if not columns[IMAGE]:
        raise ValueError(
            f"--data: {folder}: expected CLASS/*.png, train and test folders of these, one .csv or one .txt"
        )
    return columns


def _read_file(path: Path) -> Columns:
    if path.suffix.lower() == ".txt":
        return _read_text(path)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",")
        rows, names = list(reader), list(reader.fieldnames or [])
    if not rows:
        raise ValueError(f"--data: {path}: expected a header and rows, got none")
    if any(None in row or None in row.values() for row in rows):
        raise ValueError(f"--data: {path}: rows must have the {len(names)} values of the header")
    return {name: _typed([row[name] for row in rows]) for name in names}


def _read_text(path: Path) -> Columns:
    """Read one text a line, or ``label<TAB>text``."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"--data: {path}: expected lines of text, got none")
    if all("\t" in line for line in lines):
        labels, texts = zip(*(line.split("\t", 1) for line in lines), strict=True)
        names = sorted(set(labels))
        return {TEXT: list(texts), LABEL: [names.index(label) for label in labels]}
    return {TEXT: lines, LABEL: [0] * len(lines)}


def _typed(values: list[str]) -> list[Any]:
    """Turn text into whole numbers or numbers if all of a column's values are."""
    for kind in (int, float):
        try:
            return [kind(value) for value in values]
        except ValueError:
            continue
    return list(values)


def _split(columns: Columns) -> dict[str, Columns]:
    def rows(test: bool) -> Columns:
        return {
            name: [value for i, value in enumerate(values) if (i % _HELD_OUT == _HELD_OUT - 1) is test]
            for name, values in columns.items()
        }

    return {"train": rows(False), "test": rows(True)}
