"""The result of a run, typed: one definition for its writer and all readers."""

from fl_app.results.attack import Attack, Read, Sentence, TracePoint, Trained, Transcript, hash_settings
from fl_app.results.membership import MemberPoint, Membership, Statistic
from fl_app.results.property import PropertyAnswer, PropertyInference
from fl_app.results.reading import RESULT, ResultError, load_run, read_content, read_run
from fl_app.results.recovery import Exposed, Recovery
from fl_app.results.round import Failure, Round
from fl_app.results.rows import Row
from fl_app.results.run import (
    Exchange,
    Histogram,
    Model,
    Origin,
    Privacy,
    RecordPrivacy,
    Resumed,
    Run,
    SecureSum,
    Weights,
)
from fl_app.results.summary import Summary, summarise
from fl_app.results.writing import json_text, write_json, write_text

__all__ = [
    "RESULT",
    "Attack",
    "Exchange",
    "Exposed",
    "Failure",
    "Histogram",
    "MemberPoint",
    "Membership",
    "Model",
    "Origin",
    "Privacy",
    "PropertyAnswer",
    "PropertyInference",
    "Read",
    "RecordPrivacy",
    "Recovery",
    "ResultError",
    "Resumed",
    "Round",
    "Row",
    "Run",
    "SecureSum",
    "Sentence",
    "Statistic",
    "Summary",
    "TracePoint",
    "Trained",
    "Transcript",
    "Weights",
    "hash_settings",
    "json_text",
    "load_run",
    "read_content",
    "read_run",
    "summarise",
    "write_json",
    "write_text",
]
