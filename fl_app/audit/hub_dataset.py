"""Stand-in for `datasets.Dataset` over local columns: the part of its interface that client apps use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from fl_app.audit.tables import IMAGE, LABEL, TEXT, Columns, class_names

_ALIASES = (
    (IMAGE, {"img", "image", "images", "pixel_values", "picture", "x"}),
    (LABEL, {"label", "labels", "fine_label", "coarse_label", "target", "class", "y", "character", "digit"}),
    (TEXT, {"text", "sentence", "content", "review"}),
)
"""Hub data sets name the same columns differently; a column takes the name that the app asks for."""


class Named(dict[str, Any]):
    """Columns of a batch that answer to the app's own name for pictures, labels and texts."""

    def __missing__(self, key: str) -> Any:
        column = alias_of(key, self)
        self[key] = super().pop(column)
        return self[key]


def alias_of(key: str, columns: Mapping[str, Any]) -> str:
    """Return the column that ``key`` means."""
    if key in columns:
        return key
    for own, names in _ALIASES:
        found = [name for name in columns if name == own or name in names]
        if key in names and found:
            return found[0]
    raise KeyError(f"the stand-in data have no column {key!r}; they have {', '.join(columns)}")


class Feature:
    """A column's description."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.num_classes = len(self.names)

    def int2str(self, value: int) -> str:
        """Return the name of a class."""
        return self.names[value]

    def str2int(self, name: str) -> int:
        """Return the number of a class."""
        return self.names.index(name)


class Features(dict[str, Feature]):
    """Descriptions by column, under any name of a column."""

    def __missing__(self, key: str) -> Feature:
        return self[alias_of(key, self)]


class Dataset:
    """Rows in memory, with the transform or format in which they are read."""

    def __init__(
        self,
        columns: Columns,
        transform: Callable[[Any], Any] | None = None,
        kind: str | None = None,
    ) -> None:
        self._columns, self._transform, self._kind = columns, transform, kind

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Sequence[Any]], **_: Any) -> Dataset:
        """Make rows from columns."""
        return cls({name: list(values) for name, values in mapping.items()})

    @classmethod
    def from_pandas(cls, frame: Any, **_: Any) -> Dataset:
        """Make rows from a data frame."""
        return cls({str(name): frame[name].tolist() for name in frame.columns})

    @property
    def column_names(self) -> list[str]:
        """The columns' names."""
        return list(self._columns)

    @property
    def features(self) -> Features:
        """The columns' descriptions."""
        return Features(
            {
                name: Feature(class_names(self._columns, name) if _discrete(values) else [])
                for name, values in self._columns.items()
            }
        )

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), len(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), []))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return self._formatted(Named(self._columns))[alias_of(key, self._columns)]
        if isinstance(key, int | np.integer):
            if not -len(self) <= key < len(self):
                raise IndexError(f"row {key} of {len(self)}")
            batch = self._read([int(key) % len(self)])
            return batch.iloc[0] if self._kind == "pandas" else Named({n: v[0] for n, v in batch.items()})
        rows = range(*key.indices(len(self))) if isinstance(key, slice) else [int(i) for i in key]
        return self._read(rows)

    def select(self, indices: Any, **_: Any) -> Dataset:
        """Return these rows."""
        chosen = [int(i) for i in indices]
        return self._with({name: [values[i] for i in chosen] for name, values in self._columns.items()})

    def take(self, n: int) -> Dataset:
        """Return the first rows."""
        return self.select(range(min(n, len(self))))

    def skip(self, n: int) -> Dataset:
        """Return all but the first rows."""
        return self.select(range(min(n, len(self)), len(self)))

    def shuffle(self, seed: int | None = None, **_: Any) -> Dataset:
        """Return the rows in random order."""
        return self.select(np.random.default_rng(seed).permutation(len(self)))

    def sort(self, column: str, reverse: bool = False, **_: Any) -> Dataset:
        """Return the rows in the order of a column."""
        values = self._columns[alias_of(column, self._columns)]
        return self.select(sorted(range(len(self)), key=values.__getitem__, reverse=reverse))

    def shard(self, num_shards: int, index: int, contiguous: bool = True, **_: Any) -> Dataset:
        """Return one of several parts."""
        if contiguous:
            return self.select(np.array_split(np.arange(len(self)), num_shards)[index])
        return self.select(range(index, len(self), num_shards))

    def train_test_split(
        self,
        test_size: float | int | None = None,
        train_size: float | int | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        **_: Any,
    ) -> DatasetDict:
        """Return two parts of the rows."""
        total = len(self)
        if test_size is None:
            test_size = (
                0.25
                if train_size is None
                else (1 - train_size if isinstance(train_size, float) else total - train_size)
            )
        test = int(np.ceil(test_size * total)) if isinstance(test_size, float) else int(test_size)
        order = np.random.default_rng(seed).permutation(total) if shuffle else np.arange(total)
        first, second = (order[test:], order[:test]) if shuffle else (order[: -test or None], order[-test:])
        return DatasetDict({"train": self.select(first), "test": self.select(second)})

    def filter(self, function: Callable[..., Any], **_: Any) -> Dataset:
        """Return the rows for which ``function`` is true."""
        return self.select([i for i in range(len(self)) if function(Named(self._row(i)))])

    def map(
        self,
        function: Callable[..., Any],
        batched: bool = False,
        remove_columns: str | Sequence[str] | None = None,
        **options: Any,
    ) -> Dataset:
        """Return rows with the columns that ``function`` makes."""
        extra = dict(options.get("fn_kwargs") or {})
        if batched:
            made = {n: list(v) for n, v in dict(function(Named(self._columns), **extra)).items()}
        else:
            rows = [dict(function(Named(self._row(i)), **extra)) for i in range(len(self))]
            made = {name: [row[name] for row in rows] for name in (rows[0] if rows else {})}
        dropped = {remove_columns} if isinstance(remove_columns, str) else set(remove_columns or ())
        length = {len(values) for values in made.values()} or {len(self)}
        kept = self._columns if length == {len(self)} else {}
        return self._with({n: v for n, v in (kept | made).items() if n not in dropped or n in made})

    def remove_columns(self, names: str | Sequence[str]) -> Dataset:
        """Return rows without these columns."""
        asked = [names] if isinstance(names, str) else names
        dropped = {alias_of(name, self._columns) for name in asked}
        return self._with({n: v for n, v in self._columns.items() if n not in dropped})

    def select_columns(self, names: str | Sequence[str]) -> Dataset:
        """Return rows with these columns alone."""
        asked = [names] if isinstance(names, str) else names
        return self._with({name: self._columns[alias_of(name, self._columns)] for name in asked})

    def rename_column(self, old: str, new: str) -> Dataset:
        """Return rows whose column has another name."""
        return self.rename_columns({old: new})

    def rename_columns(self, names: Mapping[str, str]) -> Dataset:
        """Return rows whose columns have other names."""
        new = {alias_of(old, self._columns): name for old, name in names.items()}
        return self._with({new.get(name, name): values for name, values in self._columns.items()})

    def add_column(self, name: str, column: Sequence[Any], **_: Any) -> Dataset:
        """Return rows with one more column."""
        return self._with(self._columns | {name: list(column)})

    def class_encode_column(self, column: str, **_: Any) -> Dataset:
        """Return rows whose column holds the numbers of its classes."""
        name = alias_of(column, self._columns)
        names = sorted(set(self._columns[name]))
        return self._with(self._columns | {name: [names.index(value) for value in self._columns[name]]})

    def cast_column(self, *_: Any, **__: Any) -> Dataset:
        """Return the rows: their types are those of Python."""
        return self

    def unique(self, column: str) -> list[Any]:
        """Return the distinct values of a column."""
        return list(dict.fromkeys(self._columns[alias_of(column, self._columns)]))

    def with_transform(self, transform: Callable[[Any], Any] | None, **_: Any) -> Dataset:
        """Return rows that pass ``transform`` when they are read."""
        return Dataset(self._columns, transform)

    def set_transform(self, transform: Callable[[Any], Any] | None, **_: Any) -> None:
        """Let rows pass ``transform`` when they are read."""
        self._transform, self._kind = transform, None

    def with_format(self, type: str | None = None, **_: Any) -> Dataset:
        """Return rows that are read as ``type``: torch, numpy or pandas."""
        return Dataset(self._columns, None, type)

    def set_format(self, type: str | None = None, **_: Any) -> None:
        """Read rows as ``type``."""
        self._transform, self._kind = None, type

    def reset_format(self) -> None:
        """Read rows as they are."""
        self.set_format(None)

    def to_pandas(self, **_: Any) -> Any:
        """Return the rows as a data frame."""
        return self._frame(self._columns)

    def to_dict(self) -> Columns:
        """Return the columns."""
        return dict(self._columns)

    def to_list(self) -> list[dict[str, Any]]:
        """Return the rows."""
        return [self._row(i) for i in range(len(self))]

    def _with(self, columns: Columns) -> Dataset:
        return Dataset(columns, self._transform, self._kind)

    def _row(self, i: int) -> dict[str, Any]:
        return {name: values[i] for name, values in self._columns.items()}

    def _read(self, rows: Sequence[int]) -> Any:
        batch = Named({name: [values[i] for i in rows] for name, values in self._columns.items()})
        return self._transform(batch) if self._transform is not None else self._formatted(batch)

    def _formatted(self, batch: Named) -> Any:
        if self._kind in ("torch", "pt"):
            return Named({name: _tensor(values) for name, values in batch.items()})
        if self._kind in ("numpy", "np"):
            return Named({name: np.array([np.asarray(v) for v in values]) for name, values in batch.items()})
        return self._frame(batch) if self._kind == "pandas" else batch

    @staticmethod
    def _frame(columns: Mapping[str, list[Any]]) -> Any:
        import pandas

        def series(values: list[Any]) -> Any:
            return pandas.Series(values, dtype=object if any(isinstance(v, str) for v in values) else None)

        return pandas.DataFrame({name: series(values) for name, values in columns.items()})


class DatasetDict(dict[str, Dataset]):
    """Data sets by split; what is asked of it is asked of each."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(Dataset, name, None)):
            raise AttributeError(f"the stand-in for datasets.DatasetDict has no {name}")

        def each(*args: Any, **kwargs: Any) -> DatasetDict:
            return DatasetDict({key: getattr(part, name)(*args, **kwargs) for key, part in self.items()})

        return each


def _discrete(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(value, int | str) for value in values)


def _tensor(values: list[Any]) -> Any:
    if values and isinstance(values[0], Image.Image):
        arrays = [torch.from_numpy(np.array(picture)) for picture in values]
        return torch.stack([a[None] if a.ndim == 2 else a.permute(2, 0, 1) for a in arrays])
    return values if values and isinstance(values[0], str) else torch.as_tensor(np.array(values))
