"""Stand-ins for the packages `datasets` and `flwr_datasets`, which read local files and no hub."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

from fl_app.audit import partitioners
from fl_app.audit.hub_dataset import Dataset, DatasetDict
from fl_app.audit.tables import Columns, read_tables

PACKAGES = ("datasets", "flwr_datasets")
Change = Callable[[Columns], Columns]


@contextmanager
def local_hub(data: Mapping[str, Path], change: Change | None = None) -> Iterator[None]:
    """Let data sets of these hub names be read from files, each table passed through ``change``.

    Without any names, a package that is installed stays as it is; in place of a missing one stands
    something that says which data set the app asks for.
    """
    hub = _Hub(data, change)
    made = {
        name: module for name, module in hub.modules().items() if data or not _installed(name.split(".")[0])
    }
    with ExitStack() as stack:
        made = {name: module for name, module in made.items() if not _lent(stack, name, module)}
        stack.enter_context(_in_place(made))
        yield


@contextmanager
def _in_place(made: Mapping[str, ModuleType]) -> Iterator[None]:
    """Let these modules be imported."""
    roots = tuple({name.split(".")[0] for name in made})
    hidden = {
        name: module
        for name, module in sys.modules.items()
        if name in roots or name.startswith(tuple(f"{root}." for root in roots))
    }
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            sys.modules.pop(name, None)
        sys.modules.update(hidden)


class _Hub:
    def __init__(self, data: Mapping[str, Path], change: Change | None) -> None:
        self._data, self._change = data, change

    def splits(self, name: str) -> DatasetDict:
        """Return the data set of a hub name."""
        if name not in self._data:
            given = f"; given are {', '.join(self._data)}" if self._data else ""
            raise ValueError(f"the app loads the data set {name!r}: give --data {name}=FOLDER{given}")
        tables = _tables(self._data[name])
        change = self._change or (lambda columns: columns)
        return DatasetDict({split: Dataset(change(columns)) for split, columns in tables.items()})

    def load(self, path: str, *args: Any, split: str | None = None, **_: Any) -> Any:
        """Stand in for `datasets.load_dataset`."""
        return _part(self.splits(path), split) if split else self.splits(path)

    def modules(self) -> dict[str, ModuleType]:
        """Return the stand-in modules by name."""
        hub = self

        class FederatedDataset:
            """Stand-in for `flwr_datasets.FederatedDataset`."""

            def __init__(self, *, dataset: str, partitioners: Mapping[str, Any], **options: Any) -> None:
                self._name, self._options = dataset, options
                self.partitioners = {
                    split: partitioner if hasattr(partitioner, "load_partition") else _iid(partitioner)
                    for split, partitioner in partitioners.items()
                }
                self._splits: DatasetDict | None = None

            def load_partition(self, partition_id: int, split: str | None = None) -> Dataset:
                """Return a client's samples."""
                name = split or next(iter(self.partitioners))
                partitioner = self.partitioners[name]
                if not partitioner.is_dataset_assigned():
                    partitioner.dataset = self.load_split(name)
                return partitioner.load_partition(partition_id)

            def load_split(self, split: str) -> Dataset:
                """Return all samples of a split."""
                if self._splits is None:
                    self._splits = hub.splits(self._name)
                    if self._options.get("shuffle", True):
                        self._splits = self._splits.shuffle(seed=self._options.get("seed", 42))
                    preprocessor = self._options.get("preprocessor")
                    if callable(preprocessor):
                        self._splits = preprocessor(self._splits)
                return _part(self._splits, split)

        nothing = {"disable_progress_bar": _ignore, "set_verbosity_error": _ignore}
        parts: dict[str, dict[str, Any]] = {
            "datasets": {
                "Dataset": Dataset,
                "DatasetDict": DatasetDict,
                "load_dataset": self.load,
                "concatenate_datasets": _concatenate,
                "disable_progress_bars": _ignore,
                "disable_progress_bar": _ignore,
            },
            "datasets.utils": {"disable_progress_bar": _ignore},
            "datasets.utils.logging": nothing,
            "datasets.logging": nothing,
            "flwr_datasets": {"FederatedDataset": FederatedDataset},
            "flwr_datasets.partitioner": {kind.__name__: kind for kind in partitioners.ALL},
        }
        made = {name: _module(name, content) for name, content in parts.items()}
        for name, module in made.items():
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(made[parent], child, module)
        return made


def _lent(stack: ExitStack, name: str, module: ModuleType) -> bool:
    """Put a stand-in's functions into the package that is installed, which other packages may need whole."""
    root = name.split(".")[0]
    try:
        import_module(root)
    except ImportError:
        return False
    try:
        real = import_module(name)
    except ImportError:
        return True  # the package has no such part
    kept = (Dataset, DatasetDict)
    for key, value in vars(module).items():
        if not (key.startswith("_") or isinstance(value, ModuleType) or value in kept):
            stack.enter_context(patch.object(real, key, value, create=True))
    return True


def _module(name: str, content: Mapping[str, Any]) -> ModuleType:
    module = ModuleType(name, "Stand-in that reads local files.")
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = []
    module.__version__ = "0"  # type: ignore[attr-defined]
    module.__dict__.update(content)

    def missing(attribute: str) -> Any:
        raise AttributeError(f"the audit's stand-in for {name} has no {attribute}")

    module.__getattr__ = missing  # type: ignore[method-assign]
    return module


@cache
def _tables(place: Path) -> dict[str, Columns]:
    return read_tables(place)


def _installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ValueError:
        return False


def _iid(number: int) -> partitioners.Partitioner:
    return partitioners.IidPartitioner(num_partitions=number)


def _part(splits: DatasetDict, split: str) -> Dataset:
    """Return a split by the hub's grammar: ``train``, ``train[:10%]`` or ``train+test``."""
    parts = []
    for word in split.split("+"):
        name, bracket, bounds = word.strip().partition("[")
        if name not in splits:
            raise ValueError(
                f"the app asks for the split {name!r}; the stand-in data have {', '.join(splits)}"
            )
        part = splits[name]
        if bracket:
            begin, _, end = bounds.rstrip("]").partition(":")
            low, high = _bound(begin, len(part), 0), _bound(end, len(part), len(part))
            part = part.select(range(low, high))
        parts.append(part)
    return parts[0] if len(parts) == 1 else _concatenate(parts)


def _bound(text: str, rows: int, default: int) -> int:
    if not text:
        return default
    value = int(float(text[:-1]) / 100 * rows) if text.endswith("%") else int(text)
    return int(np.clip(value if value >= 0 else rows + value, 0, rows))


def _concatenate(parts: list[Dataset], **_: Any) -> Dataset:
    names = parts[0].column_names
    return Dataset({name: [value for part in parts for value in part.to_dict()[name]] for name in names})


def _ignore(*_: Any, **__: Any) -> None:
    """Do nothing: stand-in for settings of logging."""
