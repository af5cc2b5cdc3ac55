"""Apps that try to get numbers of their data past a node's policy, one way each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from foreign_apps import message_app

SECRET = "the patient in row 17"
Change = Callable[[Message, RecordDict], RecordDict]


def _add(**records: Any) -> Change:
    return lambda message, content: RecordDict(dict(content) | records)


def _metrics(**numbers: Any) -> Change:
    def change(message: Message, content: RecordDict) -> RecordDict:
        content["metrics"] = MetricRecord({"num-examples": 10} | numbers)
        return content

    return change


def _weight(value: Any) -> Change:
    return _metrics(**{"num-examples": value})


def _arrays(edit: Callable[[dict[str, Array]], dict[str, Array]]) -> Change:
    def change(message: Message, content: RecordDict) -> RecordDict:
        content["arrays"] = ArrayRecord(edit(dict(content["arrays"])))
        return content

    return change


def _first(array: Array) -> Callable[[dict[str, Array]], dict[str, Array]]:
    return lambda arrays: arrays | {next(iter(arrays)): array}


class _TwoFaced(RecordDict):
    """Records that look harmless to whoever lists them."""

    def items(self) -> Any:
        return [(name, record) for name, record in super().items() if name != "hidden"]

    def __iter__(self) -> Any:
        return iter([name for name in super().__iter__() if name != "hidden"])


def two_faced(message: Message, content: RecordDict) -> RecordDict:
    return _TwoFaced(dict(content) | {"hidden": ConfigRecord({"text": SECRET})})


REPLIES: dict[str, Change] = {
    "text in a config": _add(config2=ConfigRecord({"text": SECRET})),
    "the server's config, changed": _add(config=ConfigRecord({"server-round": 1, "text": SECRET})),
    "bytes in a config": _add(config2=ConfigRecord({"b": SECRET.encode()})),
    "a second record of arrays": _add(more=ArrayRecord({"x": Array(np.ones(9))})),
    "a record with a telling name": _add(**{SECRET: MetricRecord({"num-examples": 10})}),
    "a metric that is not listed": _metrics(age=47.0),
    "a metric with a telling name": _metrics(**{SECRET: 1.0}),
    "a list of numbers": _metrics(loss=[0.1, 0.2]),
    "a metric beyond all bounds": _metrics(loss=1e300),
    "a metric that is no number": _metrics(loss=float("nan")),
    "a weight with a fraction": _weight(10.471),
    "a huge weight": _weight(2**60),
    "a weight of one sample": _weight(1),
    "arrays of other names": _arrays(lambda a: {f"{n} {SECRET}": v for n, v in a.items()}),
    "an array too many": _arrays(lambda a: a | {"x": Array(np.ones(3, np.float32))}),
    "an array too few": _arrays(lambda a: dict(list(a.items())[1:])),
    "an array of another shape": _arrays(_first(Array(np.ones((8, 60), np.float32)))),
    "a huge array": _arrays(_first(Array(np.ones((1 << 22,), np.float32)))),
    "an array that claims to be huge": _arrays(
        _first(Array("float32", (8, 6), "numpy.ndarray", Array(np.ones((8, 6), np.float32)).data + b"more"))
    ),
    "an array with a pickle": _arrays(
        _first(Array("object", (1,), "numpy.ndarray", b"\x80\x04\x95" + SECRET.encode()))
    ),
    "packed bytes": _arrays(_first(Array("uint8", (5,), "fl_app.packed", b"12345"))),
    "whole numbers": _arrays(_first(Array(np.ones((8, 6), np.int64)))),
    "not a number": _arrays(_first(Array(np.full((8, 6), np.nan, np.float32)))),
}


def replying(name: str) -> Any:
    """Return an app whose replies to training are changed."""
    return message_app(change=REPLIES[name])


def raising(message: Message, context: Context) -> Message:
    raise ValueError(SECRET)


def erring(message: Message, context: Context) -> Message:
    return Message(Error(code=9, reason=SECRET * 1000), reply_to=message)


class _Lying(Message):
    """A message that is no message."""

    def has_error(self) -> bool:
        raise RuntimeError(SECRET)


def lying(message: Message, context: Context) -> Message:
    reply = Message(RecordDict(), reply_to=message)
    reply.__class__ = _Lying
    return reply


def silent(message: Message, context: Context) -> Any:
    return SECRET


BREAKING = {"raises": raising, "answers with an error": erring, "lies": lying, "answers with text": silent}


def counting(message: Message, content: RecordDict, value: int) -> RecordDict:
    """Return a reply whose BatchNorm counter holds ``value``."""
    arrays = dict(content["arrays"])
    arrays["1.num_batches_tracked"] = Array(torch.tensor(value).numpy())
    content["arrays"] = ArrayRecord(arrays)
    return content
