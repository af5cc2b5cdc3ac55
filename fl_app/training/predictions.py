"""Predictions and targets: one row of logits for every label, whatever the task."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.data import PADDING

Predict = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps a model and a batch's inputs and labels to logits (P, C) and the labels (P,) that belong to them."""


def class_logits(outputs: Tensor) -> Tensor:
    """Return one logit a class; a single output is that of the second of two classes, the first one's is 0.

    The cross-entropy of these two is the logistic loss ``log(1 + exp(-y z))`` of a label ``y`` = ±1.
    """
    return F.pad(outputs, (1, 0)) if outputs.shape[1] == 1 else outputs


def classify(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Let the model name the class of each input."""
    return class_logits(model(inputs)), labels


def transcribe(start: int) -> Predict:
    """Let the model name each token of a transcript, told those before it; ``start`` is before the first.

    The tokens of all transcripts count the same.
    """

    def predict(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        spoken = labels[:, (labels != PADDING).any(dim=0)]
        # where a transcript is over, any token will do: what the model says there is left out
        previous = torch.cat([torch.full_like(spoken[:, :1], start), spoken[:, :-1].clamp(min=0)], dim=1)
        given = spoken != PADDING
        return model(inputs, previous)[given], spoken[given]

    return predict
