"""Evaluation of a model on the server's own samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.data import Samples, normalise, pixels
from fl_app.training.predictions import class_logits
from fl_app.training.ranking import auroc, balanced_accuracy

_CHUNK = 500


@dataclass(frozen=True)
class Evaluation:
    """Results of one evaluation pass."""

    accuracy: float
    """Share of correctly predicted labels; for transcripts, of tokens given the true previous ones."""
    loss: float
    """Mean loss over the labels."""
    balanced_accuracy: float | None
    """Mean recall over the classes; None for other models."""
    auroc: float | None
    """Area under the ROC curve of two classes, if both occur; None for a diverged model."""
    wer: float | None = None
    """Word error rate of a speech model that decodes on its own."""


@torch.no_grad()
def evaluate(
    model: nn.Module, samples: Samples, mean: tuple[float, ...], std: tuple[float, ...]
) -> Evaluation:
    """Evaluate ``model`` in its current mode."""
    first = next(model.parameters())
    loss, predictions, margins = 0.0, [], []
    for start in range(0, len(samples), _CHUNK):
        indices = torch.arange(start, min(start + _CHUNK, len(samples)), device="cpu")
        part = samples.take(indices)
        outputs = model(normalise(pixels(part.inputs, first.device, first.dtype), mean, std))
        logits = class_logits(outputs)
        loss += float(F.cross_entropy(logits, part.labels.to(first.device), reduction="sum"))
        predictions.append(logits.argmax(1))
        if logits.shape[1] == 2:
            # not the softmax: it has the same order but rounds confident samples to ties
            margins.append(logits[:, 1] - logits[:, 0])
    predicted, labels = torch.cat(predictions).cpu(), samples.labels.cpu()
    return Evaluation(
        accuracy=int((predicted == labels).sum()) / len(samples),
        loss=loss / len(samples),
        balanced_accuracy=balanced_accuracy(predicted, labels),
        auroc=_area(torch.cat(margins).cpu(), labels) if margins else None,
    )


def _area(margins: Tensor, labels: Tensor) -> float | None:
    ordered = not margins.isnan().any()
    return auroc(margins, labels) if ordered and len(labels.unique()) == 2 else None
