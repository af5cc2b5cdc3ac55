"""Samples that a run leaves in a file for the models that its attacker trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fl_app.data.dataset import Dataset, Samples


def save_pool(path: Path, samples: Samples) -> Path:
    """Write samples with one label each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({"inputs": samples.inputs.contiguous(), "labels": samples.labels.contiguous()}, path)
    return path


def from_pool(dataset: Dataset, path: Path) -> Dataset:
    """Return the data set with the file's samples to train on."""
    try:
        stored = load_file(path)
        samples = Samples(stored["inputs"], stored["labels"])
    except (OSError, SafetensorError, KeyError) as error:
        raise ValueError(f"audit.pool: {path}: cannot be read: {error}") from error
    return replace(dataset, train=samples)
