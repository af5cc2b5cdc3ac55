"""Random pixels with random labels: nothing to learn, but labels leak from the update of any picture.

For networks with many classes whose pictures cannot be had: what an output layer gives away depends on
features and labels, not on what is in the pictures.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fl_app.data.dataset import Dataset, Samples
from fl_app.seeding import SERVER, generator_for


def random(
    classes: int = 1000,
    shape: Sequence[int] = (3, 64, 64),
    train: int = 2000,
    test: int = 100,
    seed: int = 0,
) -> Dataset:
    """Return ``train`` and ``test`` samples of ``shape`` (C, H, W): bytes and classes, all equally likely."""
    for what, value in {"classes": classes, "train": train, "test": test}.items():
        if value < 1:
            raise ValueError(f"random: {what} must be at least 1, got {value}")
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"random: shape must be three positive integers (C, H, W), got {list(shape)}")

    def samples(part: str, count: int) -> Samples:
        generator = generator_for(seed, 0, SERVER, f"random/{part}")
        size = (count, *shape)
        pixels = torch.randint(256, size, dtype=torch.uint8, generator=generator, device="cpu")
        return Samples(pixels, torch.randint(classes, (count,), generator=generator, device="cpu"))

    return Dataset.of(
        "random",
        train=samples("train", train),
        test=samples("test", test),
        class_names=[str(label) for label in range(classes)],
    )
