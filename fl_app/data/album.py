"""An album of ten recognisable subjects: faces of people, and nine photographs that libraries ship.

It needs no network and no file of the user's. Every picture is a view of one subject: a square window
around it, shifted, scaled, mirrored, brighter or darker. Test faces are of other people than training
faces. Of each photograph there is only one, so its test views are new views of the same subject: a
trained model gets nearly all of them right, and a defense that breaks training shows at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.photographs import load_photograph
from fl_app.seeding import SERVER, generator_for

SCALE = (0.75, 1.0)
"""Smallest and largest side of a view, as a share of its subject's side."""
SHIFT = 0.08
"""Largest distance of a view's centre from its subject's, as a share of the subject's side."""
BRIGHTNESS = (0.7, 1.3)
_FACES, _TEST_FACES = 100, 20
_FACE = "face"


class Subject(NamedTuple):
    """The square that holds the subject of a photograph, in pixels."""

    x: int
    y: int
    side: int


SUBJECTS: Mapping[str, Subject] = {
    "astronaut": Subject(225, 120, 240),
    "chelsea": Subject(200, 150, 300),
    "coffee": Subject(300, 200, 400),
    "rocket": Subject(320, 213, 400),
    "camera": Subject(230, 180, 340),
    "retina": Subject(705, 705, 1411),
    "motorcycle": Subject(370, 270, 460),
    "china": Subject(320, 213, 427),
    "flower": Subject(320, 213, 427),
}
"""The subject of each photograph, by its centre and side."""


def album(size: int = 32, train_per_class: int = 200, test_per_class: int = 100, seed: int = 0) -> Dataset:
    """Return ``size`` by ``size`` views of the ten subjects, as many of each."""
    counts = {"size": size, "train_per_class": train_per_class, "test_per_class": test_per_class}
    for what, value in counts.items():
        if value < 1:
            raise ValueError(f"album: {what} must be at least 1, got {value}")
    names = (_FACE, *SUBJECTS)

    def samples(part: str, count: int) -> Samples:
        views = [_views(name, part, count, size, seed) for name in names]
        labels = torch.arange(len(names), device="cpu").repeat_interleave(count)
        return Samples(torch.cat(views), labels)

    train, test = samples("train", train_per_class), samples("test", test_per_class)
    return Dataset.of("album", train=train, test=test, class_names=names)


def _views(name: str, part: str, count: int, size: int, seed: int) -> Tensor:
    generator = generator_for(seed, 0, SERVER, f"album/{name}/{part}")
    if name == _FACE:
        faces = _faces(part)
        # every face before any a second time
        sources = [(faces[i % len(faces)], Subject(*_whole(faces[0]))) for i in range(count)]
    else:
        photograph = load_photograph(name)
        sources = [(photograph, SUBJECTS[name])] * count
    draws: Sequence[Sequence[float]] = torch.rand(
        count, 5, generator=generator, dtype=torch.float64, device="cpu"
    ).tolist()
    views = [_view(image, subject, size, draw) for (image, subject), draw in zip(sources, draws, strict=True)]
    return torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2).contiguous()


def _view(image: Image.Image, subject: Subject, size: int, draw: Sequence[float]) -> np.ndarray:
    scale, across, down, mirrored, light = draw
    side = round(subject.side * (SCALE[0] + scale * (SCALE[1] - SCALE[0])))
    left = _start(subject.x, across, subject.side, side, image.width)
    top = _start(subject.y, down, subject.side, side, image.height)
    view = image.resize(
        (size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side), reducing_gap=2.0
    )
    view = ImageEnhance.Brightness(view).enhance(BRIGHTNESS[0] + light * (BRIGHTNESS[1] - BRIGHTNESS[0]))
    pixels = np.asarray(view)
    return pixels[:, ::-1] if mirrored < 0.5 else pixels


def _start(centre: int, draw: float, whole: int, side: int, length: int) -> int:
    """Return where a window of ``side`` begins, near the subject's centre and inside the picture."""
    wanted = centre + (2 * draw - 1) * SHIFT * whole - side / 2
    return max(0, min(round(wanted), length - side))


def _whole(image: Image.Image) -> tuple[int, int, int]:
    return image.width // 2, image.height // 2, min(image.size)


def _faces(part: str) -> list[Image.Image]:
    """Return the faces for training or for testing, in colour mode."""
    # imported here: it takes a second, which only this data set should cost
    from skimage.data import lfw_subset

    crops = (np.asarray(lfw_subset())[:_FACES] * 255).round().astype(np.uint8)  # the faces come first
    chosen = crops[-_TEST_FACES:] if part == "test" else crops[:-_TEST_FACES]
    return [Image.fromarray(crop).convert("RGB") for crop in chosen]
