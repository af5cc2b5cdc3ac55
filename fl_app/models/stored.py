"""Initial weights from a file, such as a finished run's."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy the content of a safetensors file into ``model``; it must have all its tensors, and no others."""
    try:
        stored = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    own = model.state_dict()
    if stored.keys() != own.keys():
        more, fewer = sorted(stored.keys() - own.keys()), sorted(own.keys() - stored.keys())
        raise ValueError(f"{path}: is of another model: it has {more or 'nothing'} too many, lacks {fewer}")
    for name, tensor in own.items():
        if stored[name].shape != tensor.shape:
            raise ValueError(
                f"{path}: {name} must have shape {tuple(tensor.shape)}, got {tuple(stored[name].shape)}"
            )
        if not stored[name].isfinite().all():
            raise ValueError(f"{path}: {name} must be finite, got NaN or infinity")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(stored[name])
