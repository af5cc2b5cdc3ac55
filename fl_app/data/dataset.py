"""A data set as a value: bytes in memory, checked once, turned into numbers batch by batch.

Pixels stay uint8 until a batch is needed: a quarter of the memory, and a
quarter of the way to a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_app.data.row_encoding import RowEncoding
from fl_app.data.word_pieces import Vocabulary
from fl_app.text import WordPiece

PADDING = -1
"""Token after the end of a transcript or a sentence."""
UNASKED = -2
"""Label of a place that the model is not asked to predict."""
_FORMS = ((4, torch.uint8), (3, torch.float32), (2, torch.float32), (2, torch.int64))


@dataclass(frozen=True, eq=False)
class Samples:
    """Images (N, C, H, W) in uint8, or rows of numbers (N, F) in float32, and their labels (N,) in int64.

    Or utterances: frames (N, T, F) in float32, zeros after their end, with transcripts (N, L) in int64,
    `PADDING` after theirs. Or sentences (N, L) in int64, padded likewise, which are their own labels.
    """

    inputs: Tensor
    labels: Tensor
    sources: Tensor | None = None
    """Speaker of an utterance or document of a sentence (N,); None for other data."""
    owners: Tensor | None = None
    """Client that holds each sample (N,), where the source itself deals them."""

    def __post_init__(self) -> None:
        if (self.inputs.ndim, self.inputs.dtype) not in _FORMS:
            expected = "images in uint8 (N, C, H, W), sentences in int64 (N, L), or in float32 rows (N, F) "
            raise ValueError(
                f"Samples: inputs must be {expected}or utterances (N, T, F), got {_form(self.inputs)}"
            )
        if self.inputs.is_floating_point() and not self.inputs.isfinite().all():
            raise ValueError("Samples: inputs must be finite, got NaN or infinity")
        tokens = self.inputs.ndim == 3 or self.inputs.dtype == torch.int64
        if self.labels.ndim != 1 + tokens or self.labels.dtype != torch.int64:
            expected = "(N, L)" if tokens else "(N,)"
            raise ValueError(f"Samples: labels must be int64 {expected}, got {_form(self.labels)}")
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"Samples: {len(self.inputs)} inputs, but {len(self.labels)} labels")
        if tokens != (self.sources is not None):
            raise ValueError("Samples: utterances and sentences must have sources, and nothing else may")
        if self.sources is not None:
            if self.sources.shape != self.labels.shape[:1] or self.sources.dtype != torch.int64:
                raise ValueError(f"Samples: sources must be int64 (N,), got {_form(self.sources)}")
            _check_padding(self.labels)
        if self.owners is not None and self.owners.shape != self.labels.shape[:1]:
            raise ValueError(f"Samples: owners must be (N,), got {_form(self.owners)}")
        if self.inputs.dtype == torch.int64 and not self.inputs.equal(self.labels):
            raise ValueError("Samples: the labels of sentences must be the sentences, got others")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Tensor) -> Samples:
        """Return a copy of the samples at ``indices`` in that order, or of those that a mask marks."""
        sources = None if self.sources is None else self.sources[indices]
        owners = None if self.owners is None else self.owners[indices]
        return Samples(self.inputs[indices], self.labels[indices], sources, owners)

    @property
    def groups(self) -> Tensor:
        """Groups by which samples are dealt and drawn (N,): their sources, or else their labels."""
        return self.labels if self.sources is None else self.sources


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test samples of one task, and the facts that a model needs."""

    name: str
    train: Samples
    test: Samples
    num_classes: int
    in_shape: tuple[int, ...]
    """(C, H, W) of images, (F,) of rows, (T, F) of utterances, (L,) of sentences."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Per channel, of pixels in [0, 1]: a model sees ``(pixel - mean) / std``; empty for others."""
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()
    """Names of the entries of rows."""
    source_names: tuple[str, ...] = ()
    source_kind: str = "source"
    """Noun for a source, such as speaker."""
    vocabulary: Vocabulary | WordPiece | None = None
    """Vocabulary of transcripts and sentences; the classes are then its pieces."""
    masked: float | None = None
    """The share of a sentence's tokens that a model is asked for; of sentences alone."""
    encoding: RowEncoding | None = None
    """Encoding of table rows as numbers."""

    @property
    def group_names(self) -> tuple[str, ...]:
        """Return the names of the samples' groups: of sources, or else of classes."""
        return self.source_names or self.class_names

    @property
    def group_kind(self) -> str:
        """Return the noun for a group."""
        return self.source_kind if self.source_names else "class"

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
            if self.vocabulary is not None:
                labels = labels[labels != PADDING]
            if labels.min() < 0 or labels.max() >= self.num_classes:
                low, high = int(labels.min()), int(labels.max())
                self._refuse(f"{part} labels must be in 0..{self.num_classes - 1}, got {low}..{high}")
            self._check_sources(part, samples)
        if len(self.class_names) != self.num_classes:
            self._refuse(f"{self.num_classes} classes, but {len(self.class_names)} class names")
        if (self.train.sources is None) != (self.vocabulary is None):
            self._refuse("utterances and sentences must have a vocabulary, and nothing else may")
        sentences = self.train.inputs.dtype == torch.int64
        if sentences != isinstance(self.vocabulary, WordPiece) or sentences != (self.masked is not None):
            self._refuse("sentences must have a WordPiece vocabulary and a masked share; nothing else may")
        if self.masked is not None and not 0 < self.masked < 1:
            self._refuse(f"masked must be in (0, 1), got {self.masked}")
        channels = self.in_shape[0] if len(self.in_shape) == 3 else 0
        for what, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != channels:
                self._refuse(f"{what} must have {channels} entries, one a channel, got {values}")
        if min(self.std, default=1.0) <= 0:
            self._refuse(f"std must be positive, got {self.std}")

    def _check_sources(self, part: str, samples: Samples) -> None:
        if samples.sources is None:
            return
        low, high = int(samples.sources.min()), int(samples.sources.max())
        last = len(self.source_names) - 1
        if low < 0 or high > last:
            self._refuse(f"{part} sources must be in 0..{last}, got {low}..{high}")

    def _refuse(self, reason: str) -> None:
        raise ValueError(f"Dataset {self.name}: {reason}")


def pixels(inputs: Tensor, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return images in [0, 1] on ``device``; rows of numbers, utterances and sentences unchanged."""
    if inputs.is_floating_point():
        return inputs.to(device, dtype)
    if inputs.dtype == torch.int64:
        return inputs.to(device)
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


def _check_padding(labels: Tensor) -> None:
    padded = labels == PADDING
    if padded.shape[1] == 0 or padded[:, 0].any() or (padded[:, :-1] & ~padded[:, 1:]).any():
        raise ValueError(
            f"Samples: a row of tokens must begin with one, and have {PADDING} after its end alone"
        )


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
