"""The result of a run, typed: one definition for its writer and all readers."""

from fl_app.results.attack import Attack, Read, Sentence, TracePoint, Trained, Transcript
from fl_app.results.reading import RESULT, ResultError, load_run, read_run
from fl_app.results.round import Failure, Round
from fl_app.results.run import (
    Exchange,
    Histogram,
    Model,
    Privacy,
    Resumed,
    Run,
    SecureSum,
    Summary,
    Weights,
)

__all__ = [
    "RESULT",
    "Attack",
    "Exchange",
    "Failure",
    "Histogram",
    "Model",
    "Privacy",
    "Read",
    "ResultError",
    "Resumed",
    "Round",
    "Run",
    "SecureSum",
    "Sentence",
    "Summary",
    "TracePoint",
    "Trained",
    "Transcript",
    "Weights",
    "load_run",
    "read_run",
]
