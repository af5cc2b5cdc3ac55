"""Samples of a `FederatedDataset` of flwr-datasets, which its own partitioner deals to the clients."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.places import DataUnavailable
from fl_app.data.shares import mark_share
from fl_app.seeding import SERVER, generator_for

_EXTRA = "flwr-datasets is not installed: pip install 'fl-app[datasets]'"


def federated(
    root: str | Path | None = None,
    dataset: str | None = None,
    subset: str | None = None,
    partitioner: str = "IidPartitioner",
    partitions: int = 10,
    arguments: Mapping[str, Any] | None = None,
    split: str = "train",
    test_split: str = "test",
    test_fraction: float = 0.2,
    label: str = "label",
    size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Return a data set of the hub, or of the local folder ``root``, dealt by a partitioner of flwr-datasets.

    ``partitioner`` is the name of its class, ``arguments`` are its others than the number of partitions.
    """
    if (root is None) == (dataset is None):
        raise ValueError("federated: expected either root, a local folder, or dataset, a name on the hub")
    if root is not None and not Path(root).expanduser().is_dir():
        raise ValueError(f"federated: {root} is not a folder")
    try:
        import flwr_datasets
        from flwr_datasets import partitioner as partitioners
    except ImportError as error:
        raise DataUnavailable(f"federated: {_EXTRA}") from error
    kinds = {
        name: kind
        for name, kind in vars(partitioners).items()
        if name.endswith("Partitioner") and name != "Partitioner"
    }
    if partitioner not in kinds:
        raise ValueError(
            f"federated: partitioner must be one of {', '.join(sorted(kinds))}, got {partitioner!r}"
        )
    given = dict(arguments or {})
    if "num_partitions" in inspect.signature(kinds[partitioner]).parameters:
        given.setdefault("num_partitions", partitions)
    try:
        dealer = kinds[partitioner](**given)
    except TypeError as error:
        raise ValueError(f"federated: {partitioner}: {error}") from error
    where = dataset if root is None else str(Path(root).expanduser())
    source = flwr_datasets.FederatedDataset(
        dataset=where, subset=subset, partitioners={split: dealer}, seed=seed
    )
    name = Path(str(where)).name
    return from_federated(
        source,
        name=name,
        split=split,
        test_split=test_split,
        test_fraction=test_fraction,
        label=label,
        size=size,
        seed=seed,
    )


def from_federated(
    source: Any,
    *,
    name: str = "federated",
    split: str = "train",
    test_split: str = "test",
    test_fraction: float = 0.2,
    label: str = "label",
    size: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Return the samples of a `FederatedDataset`; partition i belongs to client i.

    Inputs are its first column of images, else all its columns of numbers, scaled to mean 0 and deviation 1.
    Without ``test_split``, ``test_fraction`` of each class is held out. ``size`` makes images square.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"federated: test_fraction must be in (0, 1), got {test_fraction}")
    try:
        count = source.partitioners[split].num_partitions
        parts = [source.load_partition(i, split) for i in range(count)]
    except (KeyError, FileNotFoundError) as error:
        raise ValueError(f"federated: {name}: {error}") from error
    try:
        held_out = source.load_split(test_split)
    except (KeyError, ValueError):
        held_out = None
    tables = parts if held_out is None else [*parts, held_out]
    classes = _classes(tables, label)
    inputs, features = _inputs(tables, label, size)
    labels = torch.tensor([classes.index(str(value)) for value in _labels(tables, label)])
    lengths = [len(part) for part in parts]
    train = slice(0, sum(lengths))
    owners = torch.arange(count).repeat_interleave(torch.tensor(lengths))
    is_test = torch.arange(len(labels)) >= train.stop
    if held_out is None:
        is_test = mark_share(
            labels, test_fraction, lambda one: generator_for(seed, 0, SERVER, f"federated/{one}/test")
        )
    owners = torch.cat([owners, owners.new_full((len(labels) - len(owners),), -1)])
    if features:
        middle, spread = inputs[~is_test].mean(0), inputs[~is_test].std(0, unbiased=False)
        inputs = (inputs - middle) / torch.where(spread > 0, spread, 1)
    mine = Samples(inputs[~is_test], labels[~is_test], owners=owners[~is_test])
    test = Samples(inputs[is_test], labels[is_test])
    if features:
        whole = Dataset(name, mine, test, len(classes), (inputs.shape[1],), (), (), tuple(classes))
        return replace(whole, feature_names=features)
    return Dataset.of(name, train=mine, test=test, class_names=classes)


def _labels(tables: Sequence[Any], label: str) -> list[Any]:
    """Return all labels, by name where the table has names."""
    for table in tables:
        if label not in table.column_names:
            raise ValueError(
                f"federated: label must be one of {', '.join(table.column_names)}; got {label!r}"
            )
    named = [getattr(table.features[label], "names", None) for table in tables]
    return [
        value if names is None else names[value]
        for table, names in zip(tables, named, strict=True)
        for value in table[label]
    ]


def _classes(tables: Sequence[Any], label: str) -> list[str]:
    found = _labels(tables, label)
    names = getattr(tables[0].features[label], "names", None)
    return list(names) if names is not None else [str(value) for value in sorted(set(found))]


def _inputs(tables: Sequence[Any], label: str, size: int | None) -> tuple[Tensor, tuple[str, ...]]:
    """Return images as bytes (N, C, H, W), or numbers (N, F) with the names of their columns."""
    first = tables[0][0]
    columns = [column for column in tables[0].column_names if column != label]
    images = [column for column in columns if isinstance(first[column], Image.Image)]
    if images:
        grey = first[images[0]].mode in ("1", "L")
        arrays = [_pixels(image, size, grey) for table in tables for image in table[images[0]]]
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise ValueError(f"federated: images differ in shape, such as {sorted(shapes)[:2]}; set size")
        stacked = torch.from_numpy(np.stack(arrays))
        return (stacked.unsqueeze(-1) if grey else stacked).permute(0, 3, 1, 2).contiguous(), ()
    numbers = tuple(column for column in columns if isinstance(first[column], int | float))
    if not numbers:
        raise ValueError(f"federated: expected a column of images or of numbers, got {', '.join(columns)}")
    rows = [np.stack([np.asarray(table[column], np.float32) for column in numbers], 1) for table in tables]
    return torch.from_numpy(np.concatenate(rows)), numbers


def _pixels(image: Image.Image, size: int | None, grey: bool) -> np.ndarray:
    plain = image.convert("L" if grey else "RGB")
    if size is not None and plain.size != (size, size):
        plain = ImageOps.fit(plain, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(plain)
