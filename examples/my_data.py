"""A data set of one's own: grey images with one bright bar, whose place is the class."""

from __future__ import annotations

import torch

from fl_app.data import Dataset, Samples

CLASSES = 4
SIZE = 8


def bars(train: int, test: int, seed: int = 0) -> Dataset:
    """Draw so many training and test images; bytes (N, C, H, W) and labels (N,)."""
    generator = torch.Generator().manual_seed(seed)
    return Dataset.of(
        "bars",
        train=_draw(train, generator),
        test=_draw(test, generator),
        class_names=tuple(f"column {2 * label}" for label in range(CLASSES)),
    )


def _draw(count: int, generator: torch.Generator) -> Samples:
    labels = torch.arange(count) % CLASSES
    images = torch.randint(0, 100, (count, 1, SIZE, SIZE), generator=generator, dtype=torch.uint8)
    for image, label in zip(images, labels, strict=True):
        image[0, :, 2 * label] += 150
    return Samples(images, labels)
