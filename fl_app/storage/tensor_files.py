"""Tensors from a file of any framework: `.pt`, `.safetensors` or `.npz`, read without unpickling objects."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from fl_app.types import Tensors

_UNNAMED = re.compile(r"arr_(\d+)")
"""Names that numpy gives to arrays without one."""


def read_tensors(path: Path | str) -> Tensors:
    """Return the tensors of a file by name, or in their order if they have no names; else ValueError."""
    path = Path(path)
    readers: dict[str, Callable[[Path], Tensors]] = {
        ".pt": _torch,
        ".pth": _torch,
        ".safetensors": load_file,
        ".npz": _numpy,
    }
    if path.suffix not in readers:
        raise ValueError(f"{path}: expected a file whose name ends in {', '.join(readers)}")
    try:
        return readers[path.suffix](path)
    # the readers raise whatever a damaged file makes them meet
    except Exception as error:
        reason = str(error).partition(". ")[0]  # torch goes on with advice to unpickle
        raise ValueError(f"{path}: cannot be read as tensors: {reason}") from error


def _torch(path: Path) -> Tensors:
    content = torch.load(path, map_location="cpu", weights_only=True)
    values = list(content.values()) if isinstance(content, Mapping) else content
    names = list(content) if isinstance(content, Mapping) else []
    if not isinstance(values, list | tuple) or not all(isinstance(value, Tensor) for value in values):
        raise ValueError(f"expected tensors by name or a list of them, got {type(content).__name__}")
    if not all(isinstance(name, str) for name in names):
        raise ValueError("expected names that are strings")
    return dict(content) if names else list(values)


def _numpy(path: Path) -> Tensors:
    found: dict[str, Tensor] = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            found[name.removesuffix(".npy")] = torch.from_numpy(np.ascontiguousarray(array))
    numbers = [_UNNAMED.fullmatch(name) for name in found]
    if not all(numbers):
        return found
    ordered = sorted((int(match[1]), name) for match, name in zip(numbers, found, strict=True) if match)
    return [found[name] for _, name in ordered]
