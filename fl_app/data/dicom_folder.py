"""Medical images in DICOM files: a folder of them, classed by their folders or by one attribute."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from fl_app.console.stated_failure import StatedFailure
from fl_app.data.dataset import Dataset, Samples
from fl_app.data.facts import Facts
from fl_app.data.shares import mark_share
from fl_app.seeding import SERVER, generator_for

MOST_PIXELS = 1 << 26
"""Pixels of one image; a file may declare any number."""


class NoReader(StatedFailure):
    """A package that reads these files is missing."""


def dicom(
    root: str | Path,
    size: int = 32,
    label: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Return the images of the DICOM files below ``root`` as grey squares of ``size``.

    The class is the folder below ``root``, or the value of the attribute ``label``, such as Modality. Of each
    class ``test_fraction``, drawn by ``seed``, is for testing. Grey values are those that a viewer shows:
    rescaled, in the file's window, dark on bright inverted. Of several frames the middle one counts. Files
    without an image are passed over.
    """
    if size < 1:
        raise ValueError(f"dicom: size must be at least 1, got {size}")
    if not 0 < test_fraction < 1:
        raise ValueError(f"dicom: test_fraction must be in (0, 1), got {test_fraction}")
    root = Path(root).expanduser()
    found = _read_all(root, size, label)
    classes = tuple(sorted(found))
    if not classes:
        raise ValueError(f"dicom: {root} has no DICOM file with an image")
    inputs, labels = _stacked(found, classes)
    test = mark_share(
        labels, test_fraction, lambda value: generator_for(seed, 0, SERVER, f"dicom/{value}/test")
    )
    if not test.any():
        raise ValueError(f"dicom: {root} must have two images of some class: one is for testing")
    return Dataset.of(
        root.resolve().name,
        train=Samples(inputs[~test], labels[~test]),
        test=Samples(inputs[test], labels[test]),
        class_names=classes,
    )


def own_dicom(root: Path, facts: Facts, label: str | None = None, **settings: Any) -> Samples:
    """Return all images below ``root``, for training; each class must be one that the server knows."""
    found = _read_all(root, facts.in_shape[-1], label)
    unknown = sorted(set(found) - set(facts.class_names))
    if unknown or not found:
        raise ValueError(
            f"dicom: {root} must have images of {', '.join(facts.class_names)}, "
            f"got {', '.join(unknown) or 'none'}"
        )
    return Samples(*_stacked(found, facts.class_names))


def _stacked(
    found: Mapping[str, Sequence[np.ndarray]], classes: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor]:
    pictures = [picture for name in classes for picture in found.get(name, ())]
    counts = torch.tensor([len(found.get(name, ())) for name in classes], device="cpu")
    labels = torch.arange(len(classes), device="cpu").repeat_interleave(counts)
    return torch.from_numpy(np.stack(pictures)).unsqueeze(1), labels


def _read_all(root: Path, size: int, label: str | None) -> dict[str, list[np.ndarray]]:
    reader = _reader()
    if not root.is_dir():
        raise ValueError(f"dicom: {root} is not a folder")
    found: dict[str, list[np.ndarray]] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file() and path.name[0] != "."):
        read = _read(reader, path, size, label)
        if read is None:
            continue
        name, picture = read
        folder = path.relative_to(root).parts
        if label is None and len(folder) > 1:
            name = folder[0]
        if not name:
            wanted = f"the attribute {label}" if label is not None else "a folder of its class"
            raise ValueError(f"dicom: {path} has not {wanted}; set data.label, such as data.label=Modality")
        found.setdefault(name, []).append(picture)
    return found


def _read(reader: Any, path: Path, size: int, label: str | None) -> tuple[str, np.ndarray] | None:
    """Return a file's value of ``label`` and its picture; None if it is no DICOM file, or has no image."""
    try:
        header = reader.dcmread(path)
        # values are read from their text only now
        rows, columns = (int(header.get(name, 0) or 0) for name in ("Rows", "Columns"))
        frames = int(header.get("NumberOfFrames", 1) or 1)
        if "PixelData" not in header or not rows or not columns:
            return None
        if rows * columns * frames > MOST_PIXELS:
            raise ValueError(f"at most {MOST_PIXELS} pixels, got {frames} x {rows} x {columns}")
        return "" if label is None else str(header.get(label, "")), _picture(reader, header, size)
    except (reader.errors.InvalidDicomError, IsADirectoryError):
        return None
    except Exception as error:  # its readers and decoders raise whatever a damaged file makes them trip over
        raise ValueError(f"dicom: cannot read {path}: {error}") from error


def _picture(reader: Any, header: Any, size: int) -> np.ndarray:
    values = header.pixel_array
    colours = int(header.get("SamplesPerPixel", 1)) > 1
    if values.ndim == (4 if colours else 3):
        values = values[len(values) // 2]
    if colours:
        grey = values.astype(np.float64)[..., :3].mean(axis=-1)
        low, high = 0.0, float(2 ** int(header.get("BitsStored", 8)) - 1)
    else:
        processing = reader.pixels.processing
        grey = processing.apply_voi_lut(processing.apply_modality_lut(values, header), header)
        grey = grey.astype(np.float64)
        low, high = float(grey.min()), float(grey.max())
    shown = np.clip((grey - low) / ((high - low) or 1.0), 0, 1)
    if header.get("PhotometricInterpretation") == "MONOCHROME1":
        shown = 1 - shown
    image = Image.fromarray((shown * 255).round().astype(np.uint8))
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side)).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(square)


def _reader() -> Any:
    try:
        reader = importlib.import_module("pydicom")
        importlib.import_module("pydicom.pixels.processing")
    except ImportError as error:
        raise NoReader('data=dicom needs the package pydicom: pip install "fl-app[dicom]"') from error
    return reader
