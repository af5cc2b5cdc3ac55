"""Memory of a client between rounds, in Flower's `Context.state`.

Everything is keyed by the model's hash: a round with another (manipulated) model
starts without memory and never touches the honest residual or version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fl_app.flower.held_tensor import hold, release
from fl_app.transforms import State, flatten_state, unflatten_state
from fl_app.types import Truth, Update
from fl_app.wire.messages import Reply, pack_reply, read_reply

_SEPARATOR = "/"
_HASH = 16
"""Characters of a model's hash in the names of its records."""
_META: Mapping[str, type] = {
    "version": int,
    "sent_round": int,
    "sent_order": str,
    "coordinates": bytes,
    "plan": str,
}
_WORK: Mapping[str, type] = {"round": int, "samples": int, "steps": int, "rate": float, "loss": float}
_MEASURED = "metric:"
"""Prefix of the names of the user's metrics among the numbers of stored work."""
_SENT = f"sent{_SEPARATOR}"
_OF_A_MODEL = re.compile(f"[0-9a-f]{{{_HASH}}}{_SEPARATOR}")


@dataclass(frozen=True)
class Work:
    """Results of a client's training, before its defense rewrites the update."""

    round: int
    update: Update
    buffers: Update
    """The model's buffers afterwards."""
    samples: int
    steps: int
    rate: float
    loss: float
    truth: Truth | None = None
    """The samples, for an audit."""
    raw: Update | None = None
    """Update of the same samples without any defense, for an audit."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the user's training function."""


@dataclass
class ClientState:
    """One client's memory of one model."""

    version: int = -1
    """Version of the stored weights; -1: none."""
    weights: Update = field(default_factory=dict)
    buffers: Update = field(default_factory=dict)
    transform: State = field(default_factory=dict)
    sent_round: int = 0
    """Last round in which the client sent an update; 0: none."""
    sent_order: str = ""
    """Digest of the order answered in that round."""
    sent: Reply | None = None
    """The answer, stored if training again would change state twice: a repeated order gets it again,
    and the client adds its update back if the server did not use it."""
    locations: Update = field(default_factory=dict)
    """Positions of the model's next change, from the last training order."""
    coordinates: bytes = b""
    """Coordinates agreed for the whole run, packed."""
    plan: str = ""
    """Digest of the run's plan; "" if the client trusts its run. Other plans cannot use this memory."""
    work: Work | None = None
    """Work done to name locations, sent when the training order of the same round comes."""


def load(records: RecordDict, model_hash: str, device: torch.device) -> ClientState:
    """Return the memory of the model, or a new one; raise a ValueError for invalid records."""
    meta = records.get(_name(model_hash, "meta"))
    if not isinstance(meta, ConfigRecord):
        return ClientState()

    def tensors(part: str) -> Update:
        record = records.get(_name(model_hash, part))
        return release(record, device) if isinstance(record, ArrayRecord) else {}

    return ClientState(
        weights=tensors("weights"),
        buffers=tensors("buffers"),
        transform=unflatten_state(tensors("transform")),
        sent=_load_reply(records, model_hash),
        locations=tensors("locations"),
        work=_load_work(records.get(_name(model_hash, "work")), tensors("work_tensors")),
        **_checked(meta, _META),
    )


def save(records: RecordDict, model_hash: str, state: ClientState) -> None:
    """Remember ``state``; tensors are kept by reference."""
    records[_name(model_hash, "meta")] = ConfigRecord({name: getattr(state, name) for name in _META})
    records[_name(model_hash, "weights")] = hold(state.weights)
    records[_name(model_hash, "buffers")] = hold(state.buffers)
    records[_name(model_hash, "transform")] = hold(flatten_state(state.transform))
    records[_name(model_hash, "locations")] = hold(state.locations)
    for part in ("work", "work_tensors", *_reply_parts(records, model_hash)):
        records.pop(_name(model_hash, part), None)
    if state.sent is not None:
        for part, record in pack_reply(state.sent).items():
            records[_name(model_hash, _SENT + part)] = record
    if state.work is not None:
        numbers, tensors = _split_work(state.work)
        records[_name(model_hash, "work")] = ConfigRecord(numbers)
        records[_name(model_hash, "work_tensors")] = hold(tensors)


def last_round(records: RecordDict) -> int:
    """Return the last round in which an update of any model was sent; 0: none."""
    metas = [records[name] for name in of_models(records) if name.endswith(f"{_SEPARATOR}meta")]
    return max((cast(int, meta["sent_round"]) for meta in metas if isinstance(meta, ConfigRecord)), default=0)


def has_answered(records: RecordDict, model_hash: str, digest: str) -> bool:
    """Return whether the records hold the answer to the order with this digest."""
    meta = records.get(_name(model_hash, "meta"))
    same = isinstance(meta, ConfigRecord) and meta["sent_order"] == digest
    return same and bool(_reply_parts(records, model_hash))


def check(records: RecordDict) -> None:
    """Raise a ValueError for invalid records of models."""
    for beginning in sorted({name[:_HASH] for name in of_models(records)}):
        load(records, beginning, torch.device("cpu"))


def of_models(records: RecordDict) -> list[str]:
    """Return the names of the records that are memories of models."""
    return [name for name in records if _OF_A_MODEL.match(name)]


def keep_only(records: RecordDict, model_hashes: set[str]) -> None:
    """Forget all other models: a server could send any number of them."""
    kept = {_name(model_hash, "") for model_hash in model_hashes}
    for name in of_models(records):
        if name[: _HASH + len(_SEPARATOR)] not in kept:
            del records[name]


def _reply_parts(records: RecordDict, model_hash: str) -> list[str]:
    prefix = _name(model_hash, _SENT)
    return [_SENT + name.removeprefix(prefix) for name in records if name.startswith(prefix)]


def _load_reply(records: RecordDict, model_hash: str) -> Reply | None:
    parts = _reply_parts(records, model_hash)
    content = RecordDict({part.removeprefix(_SENT): records[_name(model_hash, part)] for part in parts})
    return read_reply(content) if parts else None


def _split_work(work: Work) -> tuple[dict[str, Any], Update]:
    """Return the numbers and the tensors of ``work``."""
    fields = vars(work)
    numbers = {name: kind(fields[name]) for name, kind in _WORK.items()}
    numbers |= {_MEASURED + name: value for name, value in work.metrics.items()}
    truth = {} if work.truth is None else {k: v for k, v in vars(work.truth).items() if v is not None}
    tensors: State = {
        "update": {**work.update},
        "buffers": {**work.buffers},
        "truth": {**truth},
        "raw": {**(work.raw or {})},
    }
    return numbers, flatten_state(tensors)


def _load_work(record: object, tensors: Update) -> Work | None:
    if not isinstance(record, ConfigRecord):
        return None
    parts = cast(dict[str, Update], unflatten_state(tensors))
    own = {name: value for name, value in record.items() if name.startswith(_MEASURED)}
    metrics = _checked(ConfigRecord(own), dict.fromkeys(own, float))
    numbers = ConfigRecord({name: value for name, value in record.items() if name not in own})
    try:
        return Work(
            update=parts["update"],
            buffers=parts["buffers"],
            truth=Truth(**parts["truth"]) if parts["truth"] else None,
            raw=parts["raw"] or None,
            metrics={name.removeprefix(_MEASURED): value for name, value in metrics.items()},
            **_checked(numbers, _WORK),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"client_state: the work that was kept lacks a part: {error}") from error


def _checked(record: ConfigRecord, expected: Mapping[str, type]) -> dict[str, Any]:
    """Return the values of a record that must have these names and types."""
    found = dict(record.items())
    if found.keys() != expected.keys() or any(not isinstance(found[k], t) for k, t in expected.items()):
        kinds = {name: type(value).__name__ for name, value in found.items()}
        wanted = {name: kind.__name__ for name, kind in expected.items()}
        raise ValueError(f"client_state: a record must have {wanted}, got {kinds}")
    return found


def _name(model_hash: str, part: str) -> str:
    return f"{model_hash[:_HASH]}{_SEPARATOR}{part}"
