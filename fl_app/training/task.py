"""What depends on the kind of data: what is asked of a model, and how well it answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from fl_app.data import Dataset, Facts, Samples
from fl_app.training.evaluation import Evaluation, evaluate
from fl_app.training.hearing import evaluate_hearing
from fl_app.training.predictions import Predict, classify, transcribe


@dataclass(frozen=True)
class Task:
    """How the model of a data set is trained and judged."""

    predict: Predict
    evaluate: Callable[[nn.Module, Samples], Evaluation]
    """Judges a model in the mode that it is in."""


def task_of(dataset: Dataset | Facts) -> Task:
    """Return what is to be learnt from ``dataset``: transcripts where it has a vocabulary, else classes."""
    vocabulary = dataset.vocabulary
    if vocabulary is None:
        return Task(classify, partial(evaluate, mean=dataset.mean, std=dataset.std))
    return Task(transcribe(vocabulary.start), partial(evaluate_hearing, vocabulary=vocabulary))
