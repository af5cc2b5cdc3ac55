"""Tasks by kind of data: labels to predict, and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import nn

from fl_app.data import Dataset, Facts, Samples, Vocabulary
from fl_app.text import WordPiece
from fl_app.training.evaluation import Evaluation, evaluate
from fl_app.training.hearing import evaluate_hearing
from fl_app.training.local_data import Ask
from fl_app.training.masking import fill_in, hide_tokens
from fl_app.training.predictions import Predict, classify, transcribe
from fl_app.training.reading import evaluate_reading


@dataclass(frozen=True)
class Task:
    """Training and evaluation of a data set's model."""

    predict: Predict
    evaluate: Callable[[nn.Module, Samples], Evaluation]
    """Evaluates a model in its current mode."""
    ask: Ask | None = None
    """Draws the labels to predict; None: samples have their own."""


def task_of(dataset: Dataset | Facts) -> Task:
    """Return the task of ``dataset``: hidden tokens, transcripts, or else classes."""
    vocabulary = dataset.vocabulary
    if isinstance(vocabulary, Vocabulary):
        return Task(transcribe(vocabulary.start), partial(evaluate_hearing, vocabulary=vocabulary))
    if isinstance(vocabulary, WordPiece) and dataset.masked is not None:
        ask = hide_tokens(vocabulary, dataset.masked)
        return Task(fill_in, partial(evaluate_reading, ask=ask), ask)
    return Task(classify, partial(evaluate, mean=dataset.mean, std=dataset.std))
