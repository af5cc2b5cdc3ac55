"""Evaluation of a model on a client's own samples."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fl_app.training.local_data import LocalData

_CHUNK = 500


@torch.no_grad()
def evaluate_own(model: nn.Module, data: LocalData) -> tuple[int, dict[str, float]]:
    """Return the number of samples, and the mean loss and accuracy over all labels."""
    first = next(model.parameters())
    loss, right, labels = 0.0, 0, 0
    for indices in torch.arange(len(data)).split(_CHUNK):
        batch = data.batch(indices, first.device, first.dtype)
        logits, targets = batch.predict(model, batch.inputs, batch.labels)
        loss += float(F.cross_entropy(logits, targets, reduction="sum"))
        right += int((logits.argmax(1) == targets).sum())
        labels += len(targets)
    return len(data), {"loss": loss / max(1, labels), "accuracy": right / max(1, labels)}
