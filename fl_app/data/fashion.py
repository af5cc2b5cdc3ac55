"""Fashion-MNIST (Xiao et al., 2017), from the Debian package of that name or in torchvision's layout."""

from __future__ import annotations

from pathlib import Path

import torch

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.idx import read_idx
from fl_app.data.places import DataUnavailable, first_available
from fl_app.data.torchvision_copy import load_torchvision

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def fashion_mnist(root: str | Path, download: bool = False, source: str = "auto") -> Dataset:
    """Return the 60,000 and 10,000 grey images of clothes.

    "auto" looks into the Debian package first, so that nothing is downloaded which is there already.
    """
    places = {
        "debian": lambda: _read_debian(DEBIAN_FOLDER),
        "torchvision": lambda: load_torchvision("FashionMNIST", root, download=download)[:2],
    }
    train, test = first_available("fashion_mnist", source, places)
    return Dataset.of("fashion_mnist", train=train, test=test, class_names=CLASS_NAMES)


def _read_debian(folder: Path) -> tuple[Samples, Samples]:
    return _read_part(folder, "train"), _read_part(folder, "t10k")


def _read_part(folder: Path, part: str) -> Samples:
    images, labels = (folder / f"{part}-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1"))
    try:
        return Samples(read_idx(images).unsqueeze(1), read_idx(labels).to(torch.int64))
    except OSError as error:
        hint = "install the package dataset-fashion-mnist"
        raise DataUnavailable(f"cannot read {error.filename}: {error.strerror}; {hint}") from error
