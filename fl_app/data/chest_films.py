"""PneumoniaMNIST (Yang et al., 2023): chest films of children at 28 pixels, with and without pneumonia."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.facts import Facts
from fl_app.data.places import DataUnavailable

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


def read_npz(path: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return images (N, 1, H, W) and labels (N,) of each part in a file of MedMNIST's layout."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {part: _part(stored, part, path) for part in ("train", "val", "test")}
    except OSError as error:
        hint = "put MedMNIST's file there, or set data.root"
        raise DataUnavailable(f"pneumonia: cannot read {path}: {error.strerror or error}; {hint}") from error
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"pneumonia: {path} is not of MedMNIST's layout: {error}") from error


def _part(stored: Any, part: str, path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = stored[f"{part}_images"], stored[f"{part}_labels"]
    if images.ndim != 3 or images.dtype != np.uint8:
        raise ValueError(f"{part}_images must be bytes (N, H, W), got {images.dtype} {images.shape}")
    if labels.size != len(images) or not np.isin(labels, (0, 1)).all():
        raise ValueError(f"{part}_labels must be 0 or 1 for each of {len(images)} films")
    return torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)).flatten()


def _cut(images: torch.Tensor, size: int) -> torch.Tensor:
    """Return the middle of each film."""
    height, width = images.shape[-2:]
    if min(height, width) < size:
        raise ValueError(f"pneumonia: films of {height} x {width} pixels have no {size}")
    top, left = (height - size) // 2, (width - size) // 2
    return images[..., top : top + size, left : left + size].contiguous()
