"""Channels by which a reply leaves a client, as numbers, strings and sizes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import Array, Message, RecordDict

from fl_app.audit.arrays import Name
from fl_app.flower.internals import serialised_size

MOST_COMPONENTS = 4096
_NUMBER = (int, float)
_WORD_BITS = 53
"""Bits of a whole number that a float64 holds exactly."""


@dataclass(frozen=True)
class Reading:
    """Content of one channel in one reply."""

    kind: str
    """``metric``, ``config``, ``array``, ``size``, ``count``, ``names`` or ``error``."""
    values: np.ndarray
    """Numbers that the channel carries; the bytes of a text."""
    text: bool = False


def read_channels(reply: Message, update: Collection[Name] = ()) -> dict[str, Reading]:
    """Return the readings of a reply by the channel's name; arrays of the ``update`` are left out."""
    kind = reply.metadata.message_type.partition(".")[0]
    if reply.has_error():
        return {f"{kind}: error": Reading("error", _bytes(str(reply.error.reason)), text=True)}
    content = reply.content
    found: dict[str, Reading] = {}
    for name, record in content.metric_records.items():
        for key, value in record.items():
            found[f"{kind}: {name}.{key}"] = _reading("metric", value)
    for name, config in content.config_records.items():
        for key, setting in config.items():
            # the legacy API keeps metrics in config records
            number = isinstance(setting, _NUMBER) and not isinstance(setting, bool)
            found[f"{kind}: {name}.{key}"] = _reading("metric" if number else "config", setting)
    for name, arrays in content.array_records.items():
        for key, array in arrays.items():
            if (name, key) not in update:
                found[f"{kind}: {name}.{key}"] = Reading("array", _thin(array.numpy().ravel()))
    found[f"{kind}: names and their order"] = Reading("names", _bytes(_names(content)), text=True)
    names = [*content.metric_records, *content.config_records, *content.array_records]
    keys = sum(len(record) for record in content.values())
    found[f"{kind}: number of records and keys"] = Reading("count", np.array([len(names), keys], dtype=float))
    found[f"{kind}: size in bytes"] = Reading("size", np.array([serialised_size(content)], dtype=float))
    return found


def _names(content: RecordDict) -> str:
    """Return the names of all records and keys as they stand in a reply, with the arrays' forms."""
    words = []
    for name, record in content.items():
        words.append(f"[{name}]")
        for key, value in record.items():
            form = f" {value.dtype} {value.shape} {value.stype}" if isinstance(value, Array) else ""
            words.append(f"{key}{form}")
    return "\n".join(words)


def _reading(kind: str, value: Any) -> Reading:
    if isinstance(value, str):
        return Reading(kind, _bytes(value), text=True)
    if isinstance(value, bytes):
        return Reading(kind, _thin(np.frombuffer(value, np.uint8)), text=True)
    if isinstance(value, int) and abs(value) >= 1 << _WORD_BITS:
        return Reading(kind, np.array([float(value >> 32), float(value & 0xFFFFFFFF)]))
    if isinstance(value, _NUMBER):
        return Reading(kind, np.array([float(value)]))
    if isinstance(value, list) and all(isinstance(item, _NUMBER) for item in value):
        return Reading(kind, _thin(np.array(value, dtype=float)))
    return Reading(kind, _bytes("\n".join(map(str, value))), text=True)


def _bytes(text: str) -> np.ndarray:
    return _thin(np.frombuffer(text.encode(), np.uint8))


def _thin(values: np.ndarray) -> np.ndarray:
    return values[:MOST_COMPONENTS].astype(float)
