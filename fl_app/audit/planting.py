"""Known bits in a client's samples: black and white blocks in inputs, one of two classes as label."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from fl_app.audit import hub_dataset
from fl_app.audit.tables import IMAGE, LABEL, Columns

SAMPLES = 4
"""Different planted samples; the rows of a data set hold them in turn."""
BLOCKS = 8
"""Blocks of a planted picture, each way."""
_INPUT_BITS = BLOCKS * BLOCKS


@dataclass
class Plant:
    """One set of bits, and where it was planted."""

    inputs: np.ndarray
    """(SAMPLES, 64) of 0 and 1."""
    labels: np.ndarray
    """(SAMPLES,) of 0 and 1."""
    places: set[str] = field(default_factory=set)

    @classmethod
    def draw(cls, seed: int) -> Plant:
        """Draw bits at random."""
        generator = np.random.default_rng(seed)
        return cls(generator.integers(0, 2, (SAMPLES, _INPUT_BITS)), generator.integers(0, 2, SAMPLES))

    @property
    def bits(self) -> np.ndarray:
        """All bits in a row: first those of the inputs."""
        return np.concatenate([self.inputs.ravel(), self.labels])

    def picture(self, row: int, height: int, width: int) -> np.ndarray:
        """Return the pattern of a row as a picture of 0 and 1."""
        bits = self.inputs[row % SAMPLES].reshape(BLOCKS, BLOCKS)
        found: np.ndarray = bits[np.arange(height) * BLOCKS // height][:, np.arange(width) * BLOCKS // width]
        return found

    def vector(self, row: int, size: int) -> np.ndarray:
        """Return the pattern of a row as numbers of 0 and 1."""
        places = np.arange(size) * _INPUT_BITS // max(size, _INPUT_BITS)
        found: np.ndarray = self.inputs[row % SAMPLES][places]
        return found

    def columns(self, table: Columns) -> Columns:
        """Return a table with planted pictures, numbers and labels."""
        self.places.add("data set")
        names = [n for n, values in table.items() if values and isinstance(values[0], int | float)]
        label = LABEL if LABEL in table else (list(table)[-1] if table else "")
        numbers = [name for name in names if name != label]
        found = dict(table)
        if IMAGE in table:
            found[IMAGE] = [self._image(row, picture) for row, picture in enumerate(table[IMAGE])]
        for i, name in enumerate(numbers):
            low, high = min(table[name]), max(table[name])
            found[name] = [
                high if self.inputs[row % SAMPLES][i % _INPUT_BITS] else low
                for row in range(len(table[name]))
            ]
        if label and table[label]:
            classes = sorted(set(table[label]))
            if 2 <= len(classes) <= max(2, len(table[label]) // 2):
                found[label] = [classes[self.labels[row % SAMPLES]] for row in range(len(table[label]))]
        return found

    def _image(self, row: int, picture: Image.Image) -> Image.Image:
        pattern = (255 * self.picture(row, picture.height, picture.width)).astype(np.uint8)
        return Image.fromarray(pattern).convert(picture.mode)

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return rows of inputs (N, …) or labels (N,) with planted values."""
        rows = len(tensor)
        if not rows:
            return tensor
        low, high = tensor.min().item(), tensor.max().item()
        planted = tensor.clone()
        labels = tensor.ndim == 1 or (tensor.ndim == 2 and tensor.shape[1] == 1)
        for row in range(rows):
            if labels:
                planted[row] = _two_classes(tensor)[int(self.labels[row % SAMPLES])]
            else:
                planted[row] = self._pattern(row, tensor[row], low, high)
        return planted

    def sample(self, row: int, sample: Any) -> Any:
        """Return one sample of a data set with planted values: its first input, and its label."""
        done = {"input": False, "label": False}

        def leaf(item: Any) -> Any:
            if isinstance(item, Image.Image) and not done["input"]:
                done["input"] = True
                return self._image(row, item)
            if isinstance(item, Tensor | np.ndarray) and item.ndim and not done["input"]:
                done["input"] = True
                tensor = torch.as_tensor(item)
                made = self._pattern(row, tensor, tensor.min().item(), tensor.max().item())
                return made if isinstance(item, Tensor) else made.numpy()
            whole = isinstance(item, int | np.integer) or (isinstance(item, Tensor) and item.ndim == 0)
            if whole and not done["label"]:
                done["label"] = True
                value = int(self.labels[row % SAMPLES])
                return (
                    torch.as_tensor(value).to(item.dtype) if isinstance(item, Tensor) else type(item)(value)
                )
            return item

        if isinstance(sample, dict):
            return {key: leaf(value) for key, value in sample.items()}
        if isinstance(sample, list | tuple):
            return type(sample)(leaf(value) for value in sample)
        return leaf(sample)

    def _pattern(self, row: int, like: Tensor, low: float, high: float) -> Tensor:
        if like.ndim >= 2:
            bits = np.broadcast_to(self.picture(row, *like.shape[-2:]), like.shape)
        else:
            bits = self.vector(row, like.numel()).reshape(like.shape)
        return torch.from_numpy(np.where(bits, high, low).astype(np.float64)).to(like.dtype)


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """Plant the bits in every torch data set that is made or loaded from now on."""
    with ExitStack() as stack:
        original = TensorDataset.__init__

        def tensors(self: TensorDataset, *given: Tensor) -> None:
            plant.places.add("TensorDataset")
            original(self, *(plant.tensor(tensor) for tensor in given))

        stack.enter_context(patch.object(TensorDataset, "__init__", tensors))
        before = DataLoader.__init__
        classes: set[type] = set()

        @functools.wraps(before)
        def load(self: DataLoader[Any], dataset: Any, *args: Any, **kwargs: Any) -> None:
            for part in _roots(dataset):
                kind = type(part)
                if kind not in classes and not isinstance(part, TensorDataset | hub_dataset.Dataset):
                    classes.add(kind)
                    _plant_in(stack, kind, plant)
            before(self, dataset, *args, **kwargs)

        stack.enter_context(patch.object(DataLoader, "__init__", load))
        yield


def _plant_in(stack: ExitStack, kind: Any, plant: Plant) -> None:
    if issubclass(kind, IterableDataset):
        _plant_in_stream(stack, kind, plant)
        return
    if not hasattr(kind, "__getitem__"):
        return
    original = kind.__getitem__
    plant.places.add(kind.__name__)

    def item(self: Any, index: Any) -> Any:
        sample = original(self, index)
        whole = isinstance(index, int | np.integer) or (isinstance(index, Tensor) and index.ndim == 0)
        return plant.sample(int(index), sample) if whole else sample

    stack.enter_context(patch.object(kind, "__getitem__", item))


def _plant_in_stream(stack: ExitStack, kind: Any, plant: Plant) -> None:
    original = kind.__iter__
    plant.places.add(kind.__name__)

    def samples(self: Any) -> Iterator[Any]:
        for row, sample in enumerate(original(self)):
            yield plant.sample(row, sample)

    stack.enter_context(patch.object(kind, "__iter__", samples))


def _roots(dataset: Any) -> list[Any]:
    """Return the data sets below subsets and concatenations."""
    if isinstance(dataset, Subset):
        return _roots(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return [root for part in dataset.datasets for root in _roots(part)]
    return [dataset] if isinstance(dataset, Dataset) or hasattr(dataset, "__getitem__") else []


def _two_classes(labels: Tensor) -> tuple[Any, Any]:
    values = labels.unique()
    return values[0], values[min(1, len(values) - 1)]
