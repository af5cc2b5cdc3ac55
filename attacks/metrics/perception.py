"""Learned perceptual distance (LPIPS, Zhang et al. 2018); None where its weights are missing."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.metrics.pairs import as_pairs
from fl_app.models.torchvision_cpu import import_torchvision

MIN_SIDE = 64
"""AlexNet leaves one pixel of a 32-pixel image after its first layers; smaller images are enlarged."""


def lpips(images: Tensor, truth: Tensor, net: str = "alex", cache_dir: Path | None = None) -> Tensor | None:
    """Return the perceptual distance of each image (N,), or None without trained weights.

    ``net`` is "alex" or "vgg". Images with a side below `MIN_SIDE` are enlarged
    bilinearly; one channel is repeated to three.
    """
    a, b = as_pairs(images, truth, who="lpips")
    if a.shape[1] not in (1, 3):
        raise ValueError(f"lpips: images must have 1 or 3 channels, got {a.shape[1]}")
    network = _network(net, cache_dir)
    if network is None:
        return None
    with torch.no_grad():
        distance: Tensor = network.to(a.device)(_prepared(a), _prepared(b), normalize=True)
    return distance.flatten()


@functools.lru_cache(maxsize=2)
def _network(net: str, cache_dir: Path | None) -> nn.Module | None:
    # not at the top: `python -m attacks.metrics.lpips_weights` would import itself twice
    from attacks.metrics import lpips_weights

    weights = lpips_weights.load(cache_dir, net)
    if weights is None:
        return None
    import_torchvision()
    import lpips as package  # after torchvision, which it imports itself

    # it draws random weights from torch's own generator before ours replace them
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torchvision, for the old argument by which it is called
        network = package.LPIPS(pretrained=True, net=net, pnet_rand=True, verbose=False)
    # its layers are called slice<k>.<index>; a missing one is a KeyError, never a random feature
    trunk = {name: weights["features." + name.split(".", 1)[1]] for name in network.net.state_dict()}
    network.net.load_state_dict(trunk)
    ready: nn.Module = network.eval()
    return ready


def _prepared(stack: Tensor) -> Tensor:
    stack = stack.float().expand(-1, 3, -1, -1)
    side = min(stack.shape[-2:])
    if side >= MIN_SIDE:
        return stack
    size = [round(edge * MIN_SIDE / side) for edge in stack.shape[-2:]]
    return F.interpolate(stack, size=size, mode="bilinear", align_corners=False)
