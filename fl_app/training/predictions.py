"""Predictions and targets: one row of logits for every label, whatever the task."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.data import PADDING

Predict = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps a model and a batch's inputs and labels to logits (P, C) and their labels (P,)."""


def class_logits(outputs: Tensor) -> Tensor:
    """Return one logit per class; a single output becomes the second of two logits, the first is 0.

    The cross-entropy of the two is the logistic loss ``log(1 + exp(-y z))`` of a label ``y`` = ±1.
    """
    return F.pad(outputs, (1, 0)) if outputs.shape[1] == 1 else outputs


def classify(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Predict the class of each input."""
    return class_logits(model(inputs)), labels


def transcribe(start: int) -> Predict:
    """Predict each token of a transcript from the true previous ones; ``start`` precedes the first.

    The tokens of all transcripts have equal weight.
    """

    def predict(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        spoken = labels[:, (labels != PADDING).any(dim=0)]
        # after a transcript's end any token will do: the predictions there are dropped
        previous = torch.cat([torch.full_like(spoken[:, :1], start), spoken[:, :-1].clamp(min=0)], dim=1)
        given = spoken != PADDING
        return model(inputs, previous)[given], spoken[given]

    return predict
