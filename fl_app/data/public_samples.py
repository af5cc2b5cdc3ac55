"""A few samples that a server may use openly, drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fl_app.data.dataset import Dataset
from fl_app.data.handwritten_digits import mnist
from fl_app.seeding import SERVER, generator_for


def draw_public(labels: Tensor, count: int, seed: int, *, balanced: bool = False) -> Tensor:
    """Return the indices of ``count`` samples; ``balanced``: the same number of every class that occurs.

    For Fashion-MNIST, the paper on FL-TOP takes 10 MNIST digits; for patients, 12 of each class.
    """
    classes = labels.unique()
    if not 1 <= count <= len(labels):
        raise ValueError(f"draw_public: count must be in 1..{len(labels)}, got {count}")
    generator = generator_for(seed, 0, SERVER, "public")
    order = torch.randperm(len(labels), generator=generator, device="cpu")
    if not balanced:
        return order[:count]
    each, left = divmod(count, len(classes))
    fewest = int(torch.bincount(labels)[classes].min())
    if left or each > fewest:
        raise ValueError(
            f"draw_public: a balanced count must be a multiple of {len(classes)} classes, "
            f"and at most {fewest} a class; got {count}"
        )
    return torch.cat([order[labels[order] == label][:each] for label in classes])


PublicSource = Callable[[Dataset], tuple[Dataset, Dataset]]
"""Returns a data set whose training samples are public, and the task as its clients then have it."""


def held_out(samples: int, seed: int = 0, balanced: bool = False) -> PublicSource:
    """Set public samples aside from the training samples; no client gets them."""

    def split(dataset: Dataset) -> tuple[Dataset, Dataset]:
        chosen = draw_public(dataset.train.groups, samples, seed, balanced=balanced)
        if len(chosen) == len(dataset.train):
            raise ValueError(
                f"held_out: {samples} public samples leave none of {dataset.name} for the clients"
            )
        left = torch.ones(len(dataset.train), dtype=torch.bool, device="cpu")
        left[chosen] = False
        public, rest = dataset.train.take(chosen), dataset.train.take(left)
        return replace(dataset, train=public), replace(dataset, train=rest)

    return split


def digits(samples: int, root: str | Path, seed: int = 0, source: str = "auto") -> PublicSource:
    """Take MNIST digits: other pictures than the clients', as the paper on FL-TOP does for Fashion-MNIST."""

    def split(dataset: Dataset) -> tuple[Dataset, Dataset]:
        drawn = mnist(root, source=source)
        if drawn.in_shape != dataset.in_shape or drawn.num_classes > dataset.num_classes:
            raise ValueError(
                f"digits: pictures {drawn.in_shape} of {drawn.num_classes} classes do not fit "
                f"{dataset.name}: {dataset.in_shape}, {dataset.num_classes} classes"
            )
        public = drawn.train.take(draw_public(drawn.train.labels, samples, seed))
        return replace(drawn, train=public), dataset

    return split
