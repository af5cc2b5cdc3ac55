"""Images from folders named after their classes, read in parallel into one array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from fl_app.data.dataset import Dataset, Samples
from fl_app.data.facts import Facts
from fl_app.seeding import SERVER, generator_for

Files = Mapping[str, Sequence[Path]]
"""The files of each class, by name."""


def imagefolder(
    root: str | Path,
    size: int = 32,
    limit_per_class: int | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Return the images of ``root``/train/<class> and ``root``/test/<class> as colour squares of ``size``.

    Without these two folders, ``root``/<class> is split: ``test_fraction`` of
    every class, drawn by ``seed``, is for testing. ``limit_per_class`` takes the first
    files of each class folder by name. An image that is not square is cropped around its middle.
    """
    if size < 1:
        raise ValueError(f"imagefolder: size must be at least 1, got {size}")
    if limit_per_class is not None and limit_per_class < 1:
        raise ValueError(f"imagefolder: limit_per_class must be null or at least 1, got {limit_per_class}")
    if not 0 < test_fraction < 1:
        raise ValueError(f"imagefolder: test_fraction must be in (0, 1), got {test_fraction}")
    root = Path(root).expanduser()
    parts = [root / part for part in ("train", "test") if (root / part).is_dir()]
    if len(parts) == 1:
        raise ValueError(f"imagefolder: {root} has {parts[0].name}, but not both of train and test")
    if parts:
        train, test = (_list_files(part, limit_per_class) for part in parts)
    else:
        train, test = _split(_list_files(root, limit_per_class), test_fraction, seed)
    unknown = sorted(set(test) - set(train))
    if unknown:
        raise ValueError(f"imagefolder: {root} has test images of classes without training images: {unknown}")
    classes = tuple(train)
    return Dataset.of(
        root.resolve().name,
        train=_read_all(train, classes, size),
        test=_read_all(test, classes, size),
        class_names=classes,
    )


def own_images(root: Path, facts: Facts, limit_per_class: int | None = None, **settings: Any) -> Samples:
    """Return the images of ``root``/train/<class>, or else of ``root``/<class>, all for training.

    A class has the number that it has everywhere; here it may be missing. One that
    nobody else knows is refused.
    """
    files = _list_files(root / "train" if (root / "train").is_dir() else root, limit_per_class)
    unknown = sorted(set(files) - set(facts.class_names))
    if unknown:
        raise ValueError(
            f"imagefolder: {root} has the classes {', '.join(unknown)}, which the server does not have; "
            f"it has {', '.join(facts.class_names)}"
        )
    return _read_all(files, facts.class_names, facts.in_shape[-1])


def _list_files(folder: Path, limit: int | None) -> Files:
    if not folder.is_dir():
        raise ValueError(f"imagefolder: {folder} is not a folder")
    # names with a leading dot are a file manager's notes, not classes or images
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    if not classes:
        raise ValueError(f"imagefolder: {folder} has no class folders")
    files = {}
    for entry in classes:
        images = sorted(path for path in entry.iterdir() if path.is_file() and path.name[0] != ".")
        if not images:
            raise ValueError(f"imagefolder: {entry} has no files")
        files[entry.name] = images[:limit]
    return files


def _split(files: Files, test_fraction: float, seed: int) -> tuple[Files, Files]:
    train, test = {}, {}
    for name, images in files.items():
        # at least one for testing, and one left to learn from; a lonely image is for learning
        count = min(max(1, round(test_fraction * len(images))), len(images) - 1)
        generator = generator_for(seed, 0, SERVER, f"imagefolder/{name}/test")
        drawn = set(torch.randperm(len(images), generator=generator, device="cpu")[:count].tolist())
        train[name] = [path for i, path in enumerate(images) if i not in drawn]
        test[name] = [path for i, path in enumerate(images) if i in drawn]
    return train, test


def _read_all(files: Files, classes: Sequence[str], size: int) -> Samples:
    paths = [path for name in classes for path in files.get(name, ())]
    counts = torch.tensor([len(files.get(name, ())) for name in classes], device="cpu")
    inputs = np.empty((len(paths), size, size, 3), dtype=np.uint8)
    # threads are enough: the decoder lets go of the interpreter
    with ThreadPoolExecutor() as pool:
        for i, image in enumerate(pool.map(lambda path: _read(path, size), paths)):
            inputs[i] = image
    labels = torch.arange(len(classes), device="cpu").repeat_interleave(counts)
    return Samples(torch.from_numpy(inputs).permute(0, 3, 1, 2).contiguous(), labels)


def _read(path: Path, size: int) -> np.ndarray:
    try:
        with Image.open(path) as file:
            # lets the JPEG decoder skip what shrinking would throw away
            file.draft("RGB", (size, size))
            image = ImageOps.exif_transpose(file).convert("RGB")
    # MemoryError: a damaged picture may declare parts of any size
    except (OSError, SyntaxError, ValueError, MemoryError, Image.DecompressionBombError) as error:
        raise ValueError(f"imagefolder: cannot read {path} as an image: {error}") from error
    if image.size != (size, size):
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(image)
