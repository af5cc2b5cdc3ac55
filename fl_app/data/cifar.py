"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009) in torchvision's layout."""

from __future__ import annotations

from pathlib import Path

from fl_app.data.dataset import Dataset
from fl_app.data.places import first_available
from fl_app.data.torchvision_copy import load_torchvision


def cifar10(root: str | Path, download: bool = False) -> Dataset:
    """Return the 50,000 and 10,000 colour images of 10 classes, from ``root``/cifar-10-batches-py."""
    return _cifar("cifar10", "CIFAR10", root, download)


def cifar100(root: str | Path, download: bool = False) -> Dataset:
    """Return the 50,000 and 10,000 colour images of 100 classes, from ``root``/cifar-100-python."""
    return _cifar("cifar100", "CIFAR100", root, download)


def _cifar(name: str, kind: str, root: str | Path, download: bool) -> Dataset:
    places = {"torchvision": lambda: load_torchvision(kind, root, download=download)}
    train, test, class_names = first_available(name, "torchvision", places)
    return Dataset.of(name, train=train, test=test, class_names=class_names)
