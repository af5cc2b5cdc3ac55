"""Stand-ins for the partitioners of `flwr_datasets`: indices of the samples of each client."""

from __future__ import annotations

from typing import Any

import numpy as np

from fl_app.audit.hub_dataset import Dataset

Parts = list[np.ndarray]


class Partitioner:
    """Parts of a data set, computed when the first is asked for."""

    def __init__(self, num_partitions: int, **_: Any) -> None:
        self._number = int(num_partitions)
        self._parts: Parts | None = None
        self.dataset: Dataset | None = None

    @property
    def num_partitions(self) -> int:
        """Number of parts."""
        return self._number

    def is_dataset_assigned(self) -> bool:
        """Say whether there is a data set to divide."""
        return self.dataset is not None

    def load_partition(self, partition_id: int) -> Dataset:
        """Return one part."""
        if self.dataset is None:
            raise AttributeError("a partitioner needs a data set: assign one to `dataset`")
        if self._parts is None:
            self._parts = self.divide(self.dataset)
        if not 0 <= partition_id < len(self._parts):
            raise ValueError(f"partition {partition_id} of {len(self._parts)} was asked for")
        return self.dataset.select(self._parts[partition_id])

    def divide(self, dataset: Dataset) -> Parts:
        """Return the rows of each part."""
        rows = np.arange(len(dataset))
        return [rows[client :: self._number] for client in range(self._number)]

    def cut(self, dataset: Dataset, weights: np.ndarray) -> Parts:
        """Return consecutive parts of sizes in proportion to ``weights``."""
        ends = np.cumsum(weights / weights.sum() * len(dataset)).round().astype(int)
        return np.split(np.arange(len(dataset)), ends[:-1])


class IidPartitioner(Partitioner):
    """Every client gets every n-th sample."""


class LinearPartitioner(Partitioner):
    """Part i has i + 1 shares."""

    def divide(self, dataset: Dataset) -> Parts:
        """Return the rows of each part."""
        return self.cut(dataset, np.arange(1, self._number + 1))


class SquarePartitioner(LinearPartitioner):
    """Part i has (i + 1)² shares."""

    def divide(self, dataset: Dataset) -> Parts:
        """Return the rows of each part."""
        return self.cut(dataset, np.arange(1, self._number + 1) ** 2)


class ExponentialPartitioner(LinearPartitioner):
    """Part i has exp(i) shares."""

    def divide(self, dataset: Dataset) -> Parts:
        """Return the rows of each part."""
        return self.cut(dataset, np.exp(np.arange(1, self._number + 1)))


class ByColumn(Partitioner):
    """Parts that depend on a column."""

    def __init__(self, num_partitions: int, partition_by: str, *args: Any, seed: int | None = 42, **kw: Any):
        super().__init__(num_partitions)
        self._column, self._generator = partition_by, np.random.default_rng(seed)
        self._arguments, self._keywords = args, kw

    def groups(self, dataset: Dataset) -> list[np.ndarray]:
        """Return the rows of each value of the column."""
        values = np.array([str(value) for value in dataset[self._column]])
        return [np.flatnonzero(values == value) for value in np.unique(values)]


class DirichletPartitioner(ByColumn):
    """Each class is shared out in random proportions."""

    def divide(self, dataset: Dataset) -> Parts:
        """Return the rows of each part; no part is empty."""
        alpha = self._keywords.get("alpha", self._arguments[0] if self._arguments else 0.5)
        parts: list[list[int]] = [[] for _ in range(self._number)]
        for rows in self.groups(dataset):
            shares = self._generator.dirichlet(np.broadcast_to(alpha, self._number))
            ends = (np.cumsum(shares)[:-1] * len(rows)).round().astype(int)
            for part, some in zip(parts, np.split(self._generator.permutation(rows), ends), strict=True):
                part.extend(some.tolist())
        while (poorest := min(parts, key=len)) is not None and len(poorest) < min(
            10, len(dataset) // (2 * self._number)
        ):
            poorest.append(max(parts, key=len).pop())
        return [np.array(part) for part in parts]


class PathologicalPartitioner(ByColumn):
    """Each client has samples of a few classes."""

    def divide(self, dataset: Dataset) -> Parts:
        """Return the rows of each part."""
        each = self._keywords.get("num_classes_per_partition", self._arguments[0] if self._arguments else 2)
        groups = self.groups(dataset)
        holders: list[list[int]] = [[] for _ in groups]
        for client in range(self._number):
            for offset in range(each):
                holders[(client + offset) % len(groups)].append(client)
        parts: list[list[int]] = [[] for _ in range(self._number)]
        for rows, clients in zip(groups, holders, strict=True):
            for client, some in zip(clients, np.array_split(rows, max(1, len(clients))), strict=False):
                parts[client].extend(some.tolist())
        return [np.array(part) for part in parts]


class NaturalIdPartitioner(ByColumn):
    """One client for each value of a column."""

    def __init__(self, partition_by: str, **_: Any) -> None:
        super().__init__(0, partition_by)

    @property
    def num_partitions(self) -> int:
        """Number of parts."""
        return 0 if self.dataset is None else len(self.groups(self.dataset))

    def divide(self, dataset: Dataset) -> Parts:
        """Return the rows of each part."""
        return self.groups(dataset)


ALL = (
    Partitioner,
    IidPartitioner,
    LinearPartitioner,
    SquarePartitioner,
    ExponentialPartitioner,
    DirichletPartitioner,
    PathologicalPartitioner,
    NaturalIdPartitioner,
)
