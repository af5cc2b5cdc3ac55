"""LPIPS weights from the sources of the `lpips` package: torchvision's server, and its own files.

Many networks do not reach that server, so it gets little time; a file that torchvision
once left in its own cache needs no network at all.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import pickle
import tempfile
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path

import torch
from torch import Tensor

SERVER = "https://download.pytorch.org/models/"
FILES = {"alex": "alexnet-owt-7be5be79.pth", "vgg": "vgg16-397923af.pth"}
"""Names end in the first digits of the file's SHA-256."""
SILENCE = 5.0
"""Longest silence of the server in seconds."""
PATIENCE = 180.0
"""Seconds for the download in all; a slower network is better off with the smaller package."""

log = logging.getLogger(__name__)


def from_torchvision(net: str) -> dict[str, Tensor]:
    """Return convolutions and linear weights (``lin<k>.weight``); an OSError says why they are missing."""
    name = FILES[net]
    kept = Path(torch.hub.get_dir()) / "checkpoints" / name
    with tempfile.TemporaryDirectory() as folder:
        file = kept if kept.exists() else _download(SERVER + name, Path(folder) / name)
        trunk = _load(_checked(file))
    linear = _load(_package_folder() / "weights" / "v0.1" / f"{net}.pth")
    # cloned, so that the kept tensors do not keep the classifier, most of the file, in memory
    weights = {key: value.clone() for key, value in trunk.items() if key.startswith("features.")}
    return weights | {key.replace(".model.1.", "."): value for key, value in linear.items()}


def _download(url: str, path: Path) -> Path:
    end = time.monotonic() + PATIENCE
    try:
        with urllib.request.urlopen(url, timeout=SILENCE) as response, path.open("wb") as file:
            size = response.headers.get("Content-Length") or "0"
            log.info("LPIPS weights: fetching %s (%.0f MB)", url, int(size) / 1e6)
            # read1 returns what has come: a trickle must not outlast the deadline
            while part := response.read1(2**20):
                file.write(part)
                if time.monotonic() > end:
                    raise TimeoutError(f"not complete after {PATIENCE:.0f} s")
    except (OSError, HTTPException) as error:
        raise OSError(f"lpips_torchvision: could not fetch {url}: {error}") from error
    return path


def _checked(path: Path) -> Path:
    expected = path.stem.rpartition("-")[2]
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if not found.startswith(expected):
        raise OSError(f"lpips_torchvision: {path.name} has checksum {found}, expected it to begin {expected}")
    return path


def _load(path: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise OSError(f"lpips_torchvision: {path.name} is not a file of tensors: {error}") from error
    return {key: value.detach() for key, value in state.items()}


def _package_folder() -> Path:
    # found, not imported: the package imports torchvision, which takes seconds
    spec = importlib.util.find_spec("lpips")
    if spec is None or spec.origin is None:
        raise OSError("lpips_torchvision: the package lpips, which has the linear weights, is not installed")
    return Path(spec.origin).parent
