"""PneumoniaMNIST (Yang et al., 2023): chest films of children at 28 pixels, with and without pneumonia."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.facts import Facts
from fl_app.data.places import DataUnavailable
from fl_app.storage.tensor_files import read_tensors

FILE = "pneumoniamnist.npz"
CLASS_NAMES = ("healthy", "pneumonia")


def pneumonia(root: str | Path, size: int = 28) -> Dataset:
    """Return the films in ``root``/pneumoniamnist.npz; the official validation part is for training too.

    A run draws validation samples of its own. Films are cut at their edges to ``size``.
    """
    if not 8 <= size <= 28:
        raise ValueError(f"pneumonia: size must be 8 to 28, got {size}")
    parts = read_npz(Path(root).expanduser() / FILE)
    train = tuple(torch.cat([parts["train"][i], parts["val"][i]]) for i in (0, 1))
    return Dataset.of(
        "pneumonia",
        train=Samples(_cut(train[0], size), train[1]),
        test=Samples(_cut(parts["test"][0], size), parts["test"][1]),
        class_names=CLASS_NAMES,
    )


def own_films(root: Path, facts: Facts, **settings: Any) -> Samples:
    """Return all training films in ``root``/pneumoniamnist.npz, of the size that the server has."""
    parts = read_npz(root / FILE)
    inputs, labels = (torch.cat([parts["train"][i], parts["val"][i]]) for i in (0, 1))
    return Samples(_cut(inputs, facts.in_shape[-1]), labels)


def read_npz(path: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Return images (N, 1, H, W) and labels (N,) of each part in a file of MedMNIST's layout."""
    if not path.is_file():
        raise DataUnavailable(
            f"pneumonia: cannot read {path}: no such file; put MedMNIST's file there, or set data.root"
        )
    try:
        stored = read_tensors(path)
        if not isinstance(stored, Mapping):
            raise ValueError("its arrays have no names")
        return {part: _part(stored, part) for part in ("train", "val", "test")}
    except (ValueError, KeyError) as error:
        raise ValueError(f"pneumonia: {path} is not of MedMNIST's layout: {error}") from error


def _part(stored: Mapping[str, Tensor], part: str) -> tuple[Tensor, Tensor]:
    images, labels = stored[f"{part}_images"], stored[f"{part}_labels"]
    if images.ndim != 3 or images.dtype != torch.uint8:
        raise ValueError(f"{part}_images must be bytes (N, H, W), got {images.dtype} {tuple(images.shape)}")
    if labels.numel() != len(images) or not ((labels == 0) | (labels == 1)).all():
        raise ValueError(f"{part}_labels must be 0 or 1 for each of {len(images)} films")
    return images.unsqueeze(1), labels.long().flatten()


def _cut(images: Tensor, size: int) -> Tensor:
    """Return the middle of each film."""
    height, width = images.shape[-2:]
    if min(height, width) < size:
        raise ValueError(f"pneumonia: films of {height} x {width} pixels have no {size}")
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size].contiguous()
