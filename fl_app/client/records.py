"""Conversion of a client's memory of models to and from a tree that `stored_tree` writes.

The tree omits the keys of secure aggregation: no secret of a round must outlive it, and a client
without its keys counts as dropped out.
"""

from __future__ import annotations

from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fl_app.client.state import of_models
from fl_app.flower.held_tensor import hold, release
from fl_app.storage.tree_file import Tree
from fl_app.wire.messages import pack_blob, read_blob

_KINDS = {"config": ConfigRecord, "metric": MetricRecord}


def to_tree(records: RecordDict) -> Tree:
    """Return the memory of models in ``records``; tensors by reference."""
    return {name: _entries(records[name]) for name in of_models(records)}


def from_tree(tree: Tree) -> RecordDict:
    """Return the records of a tree; raise a ValueError if `to_tree` did not make it."""
    try:
        return RecordDict({name: _record(kind, entries) for name, (kind, entries) in tree.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"is not a client's memory: {error}") from error


def _entries(record: ArrayRecord | ConfigRecord | MetricRecord) -> list[Any]:
    if isinstance(record, ArrayRecord):
        blob = read_blob(record)
        return ["array", release(record)] if blob is None else ["packed", blob]
    return ["config" if isinstance(record, ConfigRecord) else "metric", dict(record.items())]


def _record(kind: str, entries: Any) -> ArrayRecord | ConfigRecord | MetricRecord:
    if kind == "packed":
        return pack_blob(entries)
    return hold(entries) if kind == "array" else cast(Any, _KINDS[kind])(entries)
