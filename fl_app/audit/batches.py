"""Samples of a recorded step: the inputs, the labels, and the form in which they are scored."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fl_app.audit.tape import Backward, Call, Entry, Sample, Source, Step, mapped

logger = logging.getLogger(__name__)

_LABEL_CALLS = {F.cross_entropy, F.nll_loss, F.binary_cross_entropy, F.binary_cross_entropy_with_logits}
_LABEL_CALLS |= {F.multi_margin_loss}
_LABEL_NAMES = ("labels", "label", "target", "targets", "y")


@dataclass(frozen=True)
class Batch:
    """Samples as the model saw them."""

    inputs: Tensor
    labels: Tensor | None
    """Whole numbers (N,), or None if the loss compares with no classes."""

    @property
    def kind(self) -> str:
        """``pictures``, ``tokens`` or ``rows``."""
        if not self.inputs.is_floating_point():
            return "tokens"
        return "pictures" if self.inputs.ndim == 4 and self.inputs.shape[1] in (1, 3) else "rows"


@dataclass(frozen=True)
class Scale:
    """Way between the model's inputs and values in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str

    def to_unit(self, inputs: Tensor) -> Tensor:
        """Return values in [0, 1] from inputs (N, C, H, W)."""
        mean, std = (torch.tensor(v).to(inputs).view(1, -1, 1, 1) for v in (self.mean, self.std))
        return (inputs * std + mean).clamp(0, 1)


def batch_of(step: Step) -> Batch | None:
    """Return the samples of a step's first loss; None if it has none."""
    return next(iter(batches_of(step)), None)


def batches_of(step: Step) -> list[Batch]:
    """Return the samples of each loss of a step: there are several where gradients are added up."""
    parts: list[list[Entry]] = [[]]
    for entry in step.entries:
        parts[-1].append(entry)
        if isinstance(entry, Backward):
            parts.append([])
    return [batch for part in parts if (batch := _batch(part)) is not None]


def _batch(entries: Sequence[Entry]) -> Batch | None:
    """Return the samples of the first call of a model, and of one with drawn numbers only if all are such."""
    calls = [call for entry in entries if isinstance(entry, Call) and (call := _inputs(entry)) is not None]
    given = next((call for call in calls if not call.drawn), calls[0] if calls else None)
    if given is None:
        return None
    inputs = given.tensor
    labels = next((found for entry in entries if (found := _labels(entry, len(inputs))) is not None), None)
    return Batch(inputs, labels)


def as_pictures(inputs: Tensor) -> Tensor:
    """Return rows of numbers as pictures of one line (N, 1, 1, D); pictures stay."""
    return inputs if inputs.ndim == 4 else inputs.flatten(1)[:, None, None, :]


def scale_of(
    batches: Sequence[Batch], normalised: tuple[tuple[float, ...], tuple[float, ...]] | None
) -> Scale:
    """Return the scale of pixels: that of the app's own normalisation, else the range of the samples."""
    inputs = torch.cat([as_pictures(batch.inputs) for batch in batches if batch.inputs.is_floating_point()])
    channels = inputs.shape[1]
    if normalised is not None and len(normalised[0]) == channels and batches[0].kind == "pictures":
        scale = Scale(*normalised, "the app's Normalize")
        if _fits(inputs, scale):
            return scale
    plain = Scale((0.0,) * channels, (1.0,) * channels, "none: inputs lie in [0, 1]")
    if _fits(inputs, plain):
        return plain
    low, high = inputs.min().item(), inputs.max().item()
    return Scale(
        (-low / (high - low),) * channels, (1 / (high - low),) * channels, "range of the client's batch"
    )


def _fits(inputs: Tensor, scale: Scale) -> bool:
    mean, std = (torch.tensor(v).to(inputs).view(1, -1, 1, 1) for v in (scale.mean, scale.std))
    pixels = inputs * std + mean
    return bool(pixels.min() > -0.01 and pixels.max() < 1.01)


def _samples(tree: object) -> list[Sample]:
    found: list[Sample] = []

    def leaf(item: object) -> object:
        if isinstance(item, Sample):
            found.append(item)
        return item

    mapped(tree, leaf)
    return found


def _inputs(entry: Call) -> Sample | None:
    if not (isinstance(entry.target, Source) and entry.grad):
        return None
    named: Mapping[str, object] = entry.kwargs
    ordered = [entry.args, *(value for name, value in named.items() if name not in _LABEL_NAMES)]
    return next((sample for sample in _samples(ordered) if sample.tensor.ndim >= 2), None)


def _labels(entry: object, rows: int) -> Tensor | None:
    if not isinstance(entry, Call):
        return None
    if isinstance(entry.target, Source):
        given = _samples([value for name, value in entry.kwargs.items() if name in _LABEL_NAMES])
    elif entry.target in _LABEL_CALLS:
        given = _samples([entry.args, entry.kwargs])
    else:
        return None
    for sample in given:
        tensor = sample.tensor
        whole = tensor.flatten()
        if len(whole) == rows and bool((whole == whole.round()).all()):
            return whole.long()
        if tensor.ndim == 2 and len(tensor) == rows and tensor.is_floating_point():
            return tensor.argmax(dim=1)
    return None
