"""Evaluation of a masked language model on the server's own sentences."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fl_app.data import Samples
from fl_app.seeding import SERVER, generator_for
from fl_app.training.evaluation import Evaluation
from fl_app.training.local_data import Ask
from fl_app.training.masking import fill_in

_CHUNK = 64


@torch.no_grad()
def evaluate_reading(model: nn.Module, samples: Samples, ask: Ask) -> Evaluation:
    """Evaluate ``model`` on hidden tokens, which are the same in all rounds and runs."""
    first = next(model.parameters())
    generator = generator_for(0, 0, SERVER, "masks")
    loss, right, count = 0.0, 0, 0
    for sentences in samples.inputs.split(_CHUNK):
        inputs, asked = ask(sentences, generator)
        logits, labels = fill_in(model, inputs.to(first.device), asked.to(first.device))
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        right, count = right + int((logits.argmax(1) == labels).sum()), count + len(labels)
    return Evaluation(accuracy=right / count, loss=loss / count, balanced_accuracy=None, auroc=None)
