"""Known bits in data that an app reads by numpy, pandas or scikit-learn."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from fl_app.audit.planting import Plant

_READERS = {
    "numpy": ("load", "loadtxt", "genfromtxt"),
    "pandas": ("read_csv", "read_table", "read_parquet", "read_excel", "read_json", "read_feather"),
    "sklearn.datasets": ("load_", "fetch_", "make_"),
}
"""Functions that return data, or the beginnings of their names."""


@contextmanager
def planted_files(plant: Plant, root: Path) -> Iterator[None]:
    """Plant the bits in every table that code below ``root`` reads by packages that are imported already."""
    with ExitStack() as stack:
        for package, names in _READERS.items():
            module = sys.modules.get(package)
            for name in [] if module is None else dir(module):
                read = getattr(module, name)
                if name.startswith(names) and callable(read) and not isinstance(read, type):
                    stack.enter_context(patch.object(module, name, _planting(read, plant, root, package)))
        yield


def _planting(read: Callable[..., Any], plant: Plant, root: Path, package: str) -> Callable[..., Any]:
    @functools.wraps(read)
    def planted(*args: Any, **kwargs: Any) -> Any:
        found = read(*args, **kwargs)
        if not Path(sys._getframe(1).f_code.co_filename).is_relative_to(root):
            return found  # a library reads something of its own
        found = _planted(found, plant)
        plant.places.add(f"{package}.{read.__name__}")
        return found

    return planted


def _planted(value: Any, plant: Plant) -> Any:
    """Return data with planted numbers and labels, in the form in which they were read."""
    if isinstance(value, np.ndarray):
        return _array(value, plant)
    if isinstance(value, tuple) and all(isinstance(part, np.ndarray) for part in value):
        return tuple(_array(part, plant) for part in value)
    if isinstance(value, np.lib.npyio.NpzFile):
        return _Archive({name: _array(value[name], plant) for name in value.files})
    if type(value).__name__ == "DataFrame":
        return _frame(value, plant)
    if isinstance(value, Mapping):  # the bunches of scikit-learn
        for name in ("data", "target", "images", "frame"):
            if value.get(name) is not None:
                value[name] = _planted(value[name], plant)  # type: ignore[index]
    return value


class _Archive(dict[str, np.ndarray]):
    """Arrays of an ``.npz`` file."""

    @property
    def files(self) -> list[str]:
        return list(self)

    def close(self) -> None:
        """Close nothing: all arrays are read."""

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _array(array: np.ndarray, plant: Plant) -> np.ndarray:
    if array.ndim == 0 or not np.issubdtype(array.dtype, np.number) or array.dtype.kind == "c":
        return array
    if array.ndim == 1 and array.dtype.kind == "f":
        return array  # a weight or target of a row, not its data
    planted: np.ndarray = plant.tensor(torch.from_numpy(array.astype(np.float64))).numpy()
    return planted.astype(array.dtype)


def _frame(frame: Any, plant: Plant) -> Any:
    columns = {str(name): frame[name].tolist() for name in frame.columns}
    planted = plant.columns(columns)
    made = frame.copy()
    for name in frame.columns:
        if planted[str(name)] is not columns[str(name)]:
            made[name] = planted[str(name)]
    return made
