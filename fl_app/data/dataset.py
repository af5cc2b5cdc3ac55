"""A data set as a value: bytes in memory, checked once, turned into numbers batch by batch.

Pixels stay uint8 until a batch is needed: a quarter of the memory, and a
quarter of the way to a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Samples:
    """Images (N, C, H, W) in uint8, or rows of numbers (N, F) in float32, and their labels (N,) in int64."""

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if (self.inputs.ndim, self.inputs.dtype) not in ((4, torch.uint8), (2, torch.float32)):
            expected = "images in uint8 (N, C, H, W) or rows in float32 (N, F)"
            raise ValueError(f"Samples: inputs must be {expected}, got {_form(self.inputs)}")
        if self.inputs.is_floating_point() and not self.inputs.isfinite().all():
            raise ValueError("Samples: inputs must be finite, got NaN or infinity")
        if self.labels.ndim != 1 or self.labels.dtype != torch.int64:
            raise ValueError(f"Samples: labels must be int64 (N,), got {_form(self.labels)}")
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"Samples: {len(self.inputs)} inputs, but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Samples:
        """Return a copy of the samples at ``indices`` in that order, or of those that a mask marks."""
        return Samples(self.inputs[indices], self.labels[indices])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of one task, and what a model must know of it."""

    name: str
    train: Samples
    test: Samples
    num_classes: int
    in_shape: tuple[int, ...]
    """(C, H, W) of images, (F,) of rows."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Per channel, of pixels in [0, 1]: a model sees ``(pixel - mean) / std``; empty for rows."""
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()
    """Of the entries of rows."""

    @classmethod
    def of(cls, name: str, *, train: Samples, test: Samples, class_names: Sequence[str]) -> Dataset:
        """Make a data set of images whose shape and normalisation are those of its training samples."""
        channels, height, width = train.inputs.shape[1:]
        mean, std = channel_statistics(train.inputs)
        return cls(
            name=name,
            train=train,
            test=test,
            num_classes=len(class_names),
            in_shape=(channels, height, width),
            mean=mean,
            std=std,
            class_names=tuple(class_names),
        )

    def __post_init__(self) -> None:
        for part, samples in (("train", self.train), ("test", self.test)):
            shape, labels = tuple(samples.inputs.shape[1:]), samples.labels
            if len(samples) == 0:
                self._refuse(f"{part} has no samples")
            if shape != self.in_shape:
                self._refuse(f"{part} inputs must be {self.in_shape}, got {shape}")
            if labels.min() < 0 or labels.max() >= self.num_classes:
                low, high = int(labels.min()), int(labels.max())
                self._refuse(f"{part} labels must be in 0..{self.num_classes - 1}, got {low}..{high}")
        if len(self.class_names) != self.num_classes:
            self._refuse(f"{self.num_classes} classes, but {len(self.class_names)} class names")
        channels = self.in_shape[0] if len(self.in_shape) == 3 else 0
        for what, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                self._refuse(f"{what} must have {channels} entries, one a channel, got {values}")
        if min(self.std, default=1.0) <= 0:
            self._refuse(f"std must be positive, got {self.std}")

    def _refuse(self, reason: str) -> None:
        raise ValueError(f"Dataset {self.name}: {reason}")


def pixels(inputs: Tensor, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return images in [0, 1] on ``device``; rows of numbers as they are."""
    if inputs.is_floating_point():
        return inputs.to(device, dtype)
    # moved first and widened there: bytes are the cheaper thing to move
    return inputs.to(device).to(dtype) / 255


def normalise(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Return ``(pixels - mean) / std`` by channel, for one image or a batch; without a mean, the same."""
    if not mean:
        return pixels

    def by_channel(values: Sequence[float]) -> Tensor:
        return torch.tensor(tuple(values), dtype=pixels.dtype, device=pixels.device).view(-1, 1, 1)

    return (pixels - by_channel(mean)) / by_channel(std)


def channel_statistics(inputs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, exactly, for pixels in [0, 1].

    A constant channel gets a deviation of 1: there is nothing to scale.
    """
    levels = torch.arange(256, dtype=torch.float64, device="cpu") / 255
    means, stds = [], []
    for channel in inputs.transpose(0, 1):
        # a histogram has all there is to know of bytes, and needs no float copy of the whole set
        share = torch.bincount(channel.flatten(), minlength=256).cpu() / channel.numel()
        mean = (share * levels).sum()
        std = (share * (levels - mean) ** 2).sum().sqrt()
        means.append(mean.item())
        stds.append(std.item() or 1.0)
    return tuple(means), tuple(stds)


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
