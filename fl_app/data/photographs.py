"""The embedded data set: crops of ten colour photographs that scikit-image and scikit-learn ship.

It needs no network and no file of the user's. The label says which photograph
a crop is from. Training crops are cut from the left half of each photograph and
test crops from the right half, so they share no pixel: a model must recognise
what it has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from PIL import Image

from fl_app.data.dataset import Dataset, Samples
from fl_app.seeding import SERVER, generator_for

SIDE = (0.3, 0.6)
"""Shortest and longest side of a crop, as a share of the photograph's shorter side."""

NAMES = (
    *("astronaut", "coffee", "chelsea", "rocket", "hubble_deep_field"),
    *("ihc", "retina", "motorcycle", "china", "flower"),
)
"""The ten photographs of the data set, in the order of its classes."""

Box = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels; right and bottom are the first pixels outside."""


def photos(size: int = 32, train_per_class: int = 200, test_per_class: int = 50, seed: int = 0) -> Dataset:
    """Return square crops of random place, scale and side (mirrored or not), resized to ``size`` pixels."""
    counts = {"size": size, "train_per_class": train_per_class, "test_per_class": test_per_class}
    for what, value in counts.items():
        if value < 1:
            raise ValueError(f"photos: {what} must be at least 1, got {value}")
    names = NAMES
    images = {name: load_photograph(name) for name in names}

    def samples(part: str, per_class: int) -> Samples:
        crops = [cut(image, part, per_class, size, seed, name) for name, image in images.items()]
        labels = torch.arange(len(names), device="cpu").repeat_interleave(per_class)
        return Samples(torch.from_numpy(np.concatenate(crops)).permute(0, 3, 1, 2).contiguous(), labels)

    train, test = samples("train", train_per_class), samples("test", test_per_class)
    return Dataset.of("photos", train=train, test=test, class_names=names)


def load_photograph(name: str) -> Image.Image:
    """Return the photograph, or say which one is missing."""
    try:
        pixels = _photographs()[name]()
    except Exception as error:  # scikit-image raises whatever its downloader does
        reason = f"{type(error).__name__}: {error}; scikit-image and scikit-learn ship it in their wheels"
        raise FileNotFoundError(f"photos: the photograph {name!r} cannot be read: {reason}") from error
    return Image.fromarray(pixels).convert("RGB")


def cut(image: Image.Image, part: str, count: int, size: int, seed: int, name: str) -> np.ndarray:
    """Return ``count`` crops of one part, (count, size, size, 3); ``name`` keeps photographs' draws apart."""
    generator = generator_for(seed, 0, SERVER, f"photos/{name}/{part}")
    boxes = draw_boxes(part_of(image.size, part), min(image.size), count, generator)
    mirrored = torch.rand(count, generator=generator, device="cpu") < 0.5
    crops = np.empty((count, size, size, 3), dtype=np.uint8)
    for i, box in enumerate(boxes):
        # cropped first: resize(box=...) also reads pixels around the box, which may be of the other part
        crop = image.crop(box).resize((size, size), Image.Resampling.BILINEAR, reducing_gap=2.0)
        crops[i] = np.asarray(crop)[:, ::-1] if mirrored[i] else np.asarray(crop)
    return crops


def part_of(image_size: tuple[int, int], part: str) -> Box:
    """Return the half of a photograph that is for "train" (left) or for "test" (right)."""
    width, height = image_size
    middle = width // 2
    return {"train": (0, 0, middle, height), "test": (middle, 0, width, height)}[part]


def draw_boxes(part: Box, shorter: int, count: int, generator: torch.Generator) -> list[Box]:
    """Draw square boxes inside ``part``; ``shorter`` is the photograph's shorter side."""
    left, top, right, bottom = part
    boxes = []
    draws = torch.rand(count, 3, generator=generator, dtype=torch.float64, device="cpu")
    for scale, across, down in draws.tolist():
        share = SIDE[0] + scale * (SIDE[1] - SIDE[0])
        side = max(1, min(round(share * shorter), right - left, bottom - top))
        x = left + int(across * (right - left - side + 1))
        y = top + int(down * (bottom - top - side + 1))
        boxes.append((x, y, x + side, y + side))
    return boxes


def _photographs() -> Mapping[str, Callable[[], np.ndarray]]:
    # imported here: together they take a second, which only this data set should cost
    from skimage import data
    from sklearn.datasets import load_sample_image

    return {
        "astronaut": data.astronaut,
        "camera": data.camera,
        "coffee": data.coffee,
        "chelsea": data.chelsea,
        "rocket": data.rocket,
        "hubble_deep_field": data.hubble_deep_field,
        "ihc": data.immunohistochemistry,
        "retina": data.retina,
        "motorcycle": lambda: data.stereo_motorcycle()[0],
        "china": lambda: load_sample_image("china.jpg"),
        "flower": lambda: load_sample_image("flower.jpg"),
    }
