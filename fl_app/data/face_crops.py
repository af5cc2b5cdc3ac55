"""A hundred faces and a hundred other pictures, 25 by 25 grey pixels, from scikit-image's wheel.

They are crops of Labeled Faces in the Wild (Huang et al. 2007); no network is needed.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.shares import mark_share
from fl_app.seeding import SERVER, generator_for

CLASS_NAMES = ("something else", "face")
OWN_SIZE = 25


def faces(size: int = OWN_SIZE, test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """Return the crops, resized to ``size`` pixels; of each class ``test_fraction`` is for testing."""
    if size < 1:
        raise ValueError(f"faces: size must be at least 1, got {size}")
    if not 0 < test_fraction < 1:
        raise ValueError(f"faces: test_fraction must be in (0, 1), got {test_fraction}")
    # imported here: it takes a second, which only this data set should cost
    from skimage.data import lfw_subset

    crops = (np.asarray(lfw_subset()) * 255).round().astype(np.uint8)  # the faces come first
    images = torch.from_numpy(np.stack([_resized(crop, size) for crop in crops])).unsqueeze(1)
    labels = (torch.arange(len(crops), device="cpu") < len(crops) // 2).long()
    is_test = mark_share(
        labels, test_fraction, lambda label: generator_for(seed, 0, SERVER, f"faces/{label}/test")
    )
    return Dataset.of(
        "faces",
        train=Samples(images[~is_test], labels[~is_test]),
        test=Samples(images[is_test], labels[is_test]),
        class_names=CLASS_NAMES,
    )


def _resized(crop: np.ndarray, size: int) -> np.ndarray:
    if size == OWN_SIZE:
        return crop
    return np.asarray(Image.fromarray(crop).resize((size, size), Image.Resampling.BILINEAR))
