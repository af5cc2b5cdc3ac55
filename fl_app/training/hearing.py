"""Evaluation of a speech model on the server's own utterances."""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.data import PADDING, Samples, Vocabulary, pixels
from fl_app.text.word_errors import word_error_rate
from fl_app.training.evaluation import Evaluation
from fl_app.training.predictions import transcribe

_CHUNK = 32


class Recogniser(Protocol):
    """Speech model that can also decode on its own."""

    def recognise(self, frames: Tensor, *, start: int, end: int, limit: int) -> Tensor:
        """Return the tokens (N, up to ``limit``) that the model decodes on its own."""


@torch.no_grad()
def evaluate_hearing(model: nn.Module, samples: Samples, vocabulary: Vocabulary) -> Evaluation:
    """Evaluate ``model`` with the true previous tokens given, and by the words it decodes on its own.

    Decoding is greedy and stops at the length of the longest transcript.
    """
    first = next(model.parameters())
    predict, limit = transcribe(vocabulary.start), samples.labels.shape[1]
    loss, right, count = 0.0, 0, 0
    said: list[str] = []
    heard: list[str] = []
    for start in range(0, len(samples), _CHUNK):
        part = samples.take(torch.arange(start, min(start + _CHUNK, len(samples)), device="cpu"))
        inputs = pixels(part.inputs, first.device, first.dtype)
        logits, labels = predict(model, inputs, part.labels.to(first.device))
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        right, count = right + int((logits.argmax(1) == labels).sum()), count + len(labels)
        said += [vocabulary.decode(row[row != PADDING].tolist()) for row in part.labels]
        found = cast(Recogniser, model).recognise(
            inputs, start=vocabulary.start, end=vocabulary.end, limit=limit
        )
        heard += [vocabulary.decode(row) for row in found.tolist()]
    return Evaluation(
        accuracy=right / count,
        loss=loss / count,
        balanced_accuracy=None,
        auroc=None,
        wer=word_error_rate(said, heard),
    )
