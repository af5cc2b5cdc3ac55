"""Rebuilding an app's reply from what the policy allows; everything else in it is refused.

No byte of a reply is passed on. Arrays take names, shapes, types and order from the message that they answer;
names of records and numbers are on lists that the node's operator wrote; texts are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fl_app.mods.arrays import read_arrays, widened
from fl_app.mods.packed import as_sent, record_of
from fl_app.mods.records import check_shapes, find_pair
from fl_app.policy import Policy, Refusal

MetricValue = int | float | list[int] | list[float]

_METRICS = "metrics"
_RESULTS = {"fitins": "fitres", "evaluateins": "evaluateres"}
"""Prefixes of records in messages of the legacy API, with those of replies."""
_LARGEST, _SMALLEST = 1e9, 1e-9
_MOST_STEPS = 1_000_000
"""Most that a counter may grow in a round."""


def rebuild_reply(policy: Policy, asked: RecordDict, reply: RecordDict, *, trains: bool) -> RecordDict:
    """Return a reply that holds what may leave; raise a `Refusal` or `Unreadable` for anything else."""
    legacy = next((res for ins, res in _RESULTS.items() if f"{ins}.parameters" in asked), None)
    rebuilt = RecordDict()
    pair = find_pair(asked, reply) if trains else None
    for name in sorted(reply):
        record = reply[name]
        if legacy is not None and name.startswith(f"{legacy}."):
            rebuilt[name] = _legacy(policy, name.removeprefix(f"{legacy}."), record, asked, pair is not None)
        elif isinstance(record, ConfigRecord) and record == asked.get(name):
            rebuilt[name] = record.copy()
        elif isinstance(record, MetricRecord) and name in (_METRICS, *policy.apps.records):
            rebuilt[name] = MetricRecord(_numbers(policy, name, record))
        elif not (pair is not None and name == pair.name):
            raise Refusal("records", f"a reply has the record {name[:80]!r} of type {type(record).__name__}")
    if pair is not None:
        usual = {pair.base, f"{legacy}.parameters", *policy.apps.records}
        if pair.name not in usual:
            raise Refusal("records", f"expected arrays named one of {sorted(usual)}, got {pair.name[:80]!r}")
        rebuilt[pair.name] = _arrays(asked[pair.base], reply[pair.name])
    return rebuilt


def _arrays(asked: object, reply: object) -> ArrayRecord:
    if not isinstance(asked, ArrayRecord) or not isinstance(reply, ArrayRecord):
        raise Refusal("records", "expected arrays")
    base, after = read_arrays(asked, "message"), read_arrays(reply, "reply")
    check_shapes(base, after)
    missing = sorted(base.keys() - after.keys())
    if missing:
        # which ones are missing would be a choice of the app's
        raise Refusal("records", f"arrays are missing from the reply: {missing[:4]}")
    _check_counters(base, after)
    return record_of(asked, as_sent(base, {name: after[name] for name in base}))


def _check_counters(base: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> None:
    for name, start in base.items():
        value = after[name]
        if start.is_floating_point() and value.is_floating_point():
            continue
        if value.numel() > 1:
            raise Refusal("records", f"{name[:80]!r} holds {value.numel()} whole numbers")
        grown = [float(entry) for entry in (widened_number(value) - widened_number(start)).flatten()]
        if any(not (0 <= step <= _MOST_STEPS and step == int(step)) for step in grown):
            raise Refusal("records", f"the counter {name[:80]!r} changes by {grown}")


def widened_number(tensor: Tensor) -> Tensor:
    """Return a number as a double, rounded down: a counter's mean may be between whole numbers."""
    wide = widened(tensor) if tensor.is_floating_point() else tensor
    return torch.floor(wide.double())


def _legacy(
    policy: Policy, part: str, record: object, asked: RecordDict, has_arrays: bool
) -> ArrayRecord | ConfigRecord | MetricRecord:
    if part == "parameters" and has_arrays:
        return ArrayRecord()  # the caller fills it
    if part == "status" and isinstance(record, ConfigRecord):
        if record.get("code") != 0:
            raise Refusal("internal", "the app answered with a status other than success")
        return ConfigRecord({"code": 0, "message": ""})
    if part == "num_examples" and isinstance(record, MetricRecord) and list(record) == ["num_examples"]:
        return MetricRecord({"num_examples": _weight(policy, "num_examples", record["num_examples"])})
    if part == "loss" and isinstance(record, MetricRecord) and list(record) == ["loss"]:
        return MetricRecord(_numbers(policy, part, record))
    if part == "metrics" and isinstance(record, ConfigRecord):
        return ConfigRecord(dict(_numbers(policy, part, record)))
    raise Refusal("records", f"a reply has the record {part[:80]!r} of type {type(record).__name__}")


def _numbers(policy: Policy, where: str, record: Mapping[str, object]) -> dict[str, MetricValue]:
    """Return the numbers of a record that may leave, rounded."""
    told: dict[str, MetricValue] = {}
    for name in sorted(record):
        if name == policy.apps.weight:
            told[name] = _weight(policy, name, record[name])
        elif name in policy.metrics:
            told[name] = _rounded(record[name], policy.apps.digits, name)
        else:
            raise Refusal("metrics", f"{where[:80]!r} has {name[:80]!r}, which policy.metrics does not list")
    return told


def _weight(policy: Policy, name: str, value: object) -> float | int:
    most = policy.apps.most_weight
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value == math.floor(value)
    if not whole or not isinstance(value, int | float) or not 0 < value <= most:
        raise Refusal("metrics", f"{name!r} must be a whole number up to {most}, got {str(value)[:40]!r}")
    if value < policy.min_samples:
        raise Refusal("batch", f"expected at least {policy.min_samples} samples, got {value}")
    return int(value)


def _rounded(value: object, digits: int, name: str) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > _LARGEST:
        raise Refusal("metrics", f"{name!r} must be a number up to {_LARGEST:g}, got {type(value).__name__}")
    return float(f"{value:.{digits - 1}e}") if abs(value) >= _SMALLEST else 0.0
