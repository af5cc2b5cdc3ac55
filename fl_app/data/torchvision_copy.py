"""Read a copy of a data set in torchvision's layout into memory, or download it where that is allowed."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fl_app.data.dataset import Samples
from fl_app.data.places import DataUnavailable
from fl_app.models.torchvision_cpu import import_torchvision


def load_torchvision(
    kind: str, root: str | Path, *, download: bool
) -> tuple[Samples, Samples, tuple[str, ...]]:
    """Return train samples, test samples and class names of ``torchvision.datasets.<kind>``."""
    try:
        make = getattr(import_torchvision("datasets"), kind)
    except ImportError as error:
        raise DataUnavailable(f"torchvision cannot be imported: {error}") from error
    root = Path(root).expanduser().resolve()
    folder = root / getattr(make, "base_folder", f"{kind}/raw")
    try:
        train, test = (make(str(root), train=part, download=download) for part in (True, False))
    except (RuntimeError, OSError) as error:
        if download:
            raise DataUnavailable(f"download to {root} failed: {error}") from error
        hint = "set data.download=true, or put a copy there or at data.root"
        raise DataUnavailable(f"no complete copy in {folder}; {hint}") from error
    return _samples(train.data, train.targets), _samples(test.data, test.targets), tuple(train.classes)


def _samples(images: object, targets: object) -> Samples:
    inputs: Tensor = torch.as_tensor(images)
    # CIFAR comes as (N, H, W, C), MNIST as (N, H, W)
    inputs = inputs.permute(0, 3, 1, 2).contiguous() if inputs.ndim == 4 else inputs.unsqueeze(1)
    return Samples(inputs, torch.as_tensor(targets, dtype=torch.int64))
