"""How good a model is on the server's own test set."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fl_app.data import Samples, normalise, pixels

_CHUNK = 500


@torch.no_grad()
def evaluate(
    model: nn.Module, samples: Samples, mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[float, float]:
    """Return accuracy and mean loss of ``model`` in the mode that it is in."""
    first = next(model.parameters())
    correct, loss = 0, 0.0
    for start in range(0, len(samples), _CHUNK):
        indices = torch.arange(start, min(start + _CHUNK, len(samples)), device="cpu")
        part = samples.take(indices)
        labels = part.labels.to(first.device)
        logits = model(normalise(pixels(part.inputs, first.device, first.dtype), mean, std))
        correct += int((logits.argmax(1) == labels).sum())
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    return correct / len(samples), loss / len(samples)
