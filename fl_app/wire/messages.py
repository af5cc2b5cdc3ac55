"""Messages between server and clients; no other module knows the record names.

Orders and answers are typed values with symmetric packing and unpacking. Unpacking
validates: a foreign or broken message raises a `MessageError` that names the fault,
never a KeyError deep inside a strategy.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import islice
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fl_app.console.words import foreign
from fl_app.flower.internals import serialised_size
from fl_app.privacy import Release
from fl_app.types import Records, Truth

IDENTIFY = "query.identify"
LOCATE = "query.locate"
TRAIN, EVALUATE = "train", "evaluate"
OFFER, SHARE, ENDORSE, UNMASK = "query.offer", "query.share", "query.endorse", "query.unmask"
"""The exchanges of secure aggregation around a training order."""

EXAMPLES = "num-examples"
"""Flower's metric name for the number of samples."""

UPDATE, GRADIENT, CHANGE = "update", "gradient", "change"
"""The key of an order's config that says what the strategy averages, and its values."""

PRIVACY = "privacy"
"""The key of an order's config that names the mechanism which the strategy charges, if any."""

VALUES = "values"
"""Name of the only tensor in blobs that hold a vector instead of a whole update."""

_ORDER, _PLAN, _ANSWER, _IDENTITY = "order", "plan", "answer", "identity"
_MODEL, _UPDATE, _BUFFERS, _LOCATIONS = "model", "update", "buffers", "locations"
_QUERY, _RELEASE, _SECURE, _FACTS = "query", "release", "secure", "facts"
_METRICS, _AUDIT, _RUN, _CONFIG = "metrics", "audit", "run", "config"
_BLOB, _PACKED, _BYTES = "blob", "packed", "u1"
"""A blob is an Array of bytes, not in numpy's format: Flower can chunk it, and mods see its size."""
_BLOBS_OF_REPLIES = (_UPDATE, _BUFFERS, _SECURE)
_OF_REPLIES = {_ANSWER, _METRICS, _RELEASE, *_BLOBS_OF_REPLIES}
MOST_METRICS = 16
MOST_ENTRIES_OF_A_RECORD = 256
_NAMES_SHOWN = 20
_WORD = 1 << 63

ConfigValue = (
    bool | int | float | str | bytes | list[bool] | list[int] | list[float] | list[str] | list[bytes]
)
"""A value of a config record."""
Header = TypeVar(
    "Header", "Order", "Answer", "Identity", "AuditOrder", "LocationQuery", "Plan", "RunName", Release
)


class MessageError(ValueError):
    """A message whose content is invalid for its kind."""


@dataclass(frozen=True)
class AuditOrder:
    """Request to an audited client for data beside its update."""

    batch_size: int = 0
    """The size of its batch in this round; 0: its own."""
    truth: bool = False
    raw: bool = False
    candidates: int = 0
    """The most candidates of a membership audit that it may show, with its members among them; 0: none."""


@dataclass(frozen=True)
class Order:
    """One client's training order of one round."""

    round: int
    client: int
    lr: float
    model_hash: str
    version: int
    """Version of the weights that the client holds after this order."""
    base: int = -1
    """The version that the packed change starts from; -1: the whole model is enclosed."""
    counted: int = 0
    """The last round in which this client's update entered the mean."""
    keep: bool = True
    """Whether the client should keep the weights for the next round's change."""
    model_spec: str = ""
    """The model's name and settings; enclosed with the whole model."""


@dataclass(frozen=True)
class RunName:
    """Name of an order's run; a resume keeps it, although Flower assigns a new run number."""

    key: str
    attempt: int = 0
    """Number of earlier, interrupted attempts at this round."""

    def __post_init__(self) -> None:
        """Refuse names that clients could not use for a folder."""
        if not re.fullmatch("[0-9a-f]{16,64}", self.key):
            raise ValueError(f"a run's key must be 16 to 64 hexadecimal digits, got {self.key!r}")


@dataclass(frozen=True)
class Plan:
    """Facts that all clients of a round share when they send a vector instead of an update."""

    start: str
    """Hash of version 0 of the model, which clients build themselves; "" if the server sends it whole."""
    coordinates: str
    """Hash of the agreed coordinates; "" if there are none."""
    seed: int
    """Seed of this round's random coordinates or measurements."""
    cohort: int
    """Number of participating clients."""
    clip: float
    """The largest L2 norm of a client's vector under differential privacy; 0 without."""


@dataclass(frozen=True)
class Answer:
    """One client's answer to a training order."""

    round: int
    client: int
    samples: int = 0
    """Number of samples behind the update; 0: withheld, where it would reveal something."""
    steps: int = 0
    """Local optimiser steps; 0: the update is a gradient."""
    need_model: bool = False
    """The client does not hold the version that the order's change starts from."""
    left_out: bool = False
    """The update belongs to another model than the round's and does not enter the mean."""


@dataclass(frozen=True)
class Identity:
    """Identity of a node, independent of Flower's node id."""

    client: int
    num_clients: int
    allow_audit: bool
    own_data: bool = False
    """Whether the node trains on its own samples, unknown to the server."""


@dataclass(frozen=True)
class LocationQuery:
    """Request for positions of a client's largest entries: ``share`` of every tensor, small ones whole."""

    share: float
    min_size: int


@dataclass(frozen=True)
class Parcel:
    """An order with its attachments."""

    order: Order
    model: bytes
    buffers: bytes = b""
    locations: bytes = b""
    """The only positions at which the update may be non-zero; b"": anywhere."""
    audit: AuditOrder | None = None
    plan: Plan | None = None
    secure: bytes = b""
    """Message of secure aggregation in the order; b"": there is none."""
    run: RunName | None = None
    """None if no client outlives the server, so none has to store anything."""
    config: Mapping[str, ConfigValue] = field(default_factory=dict)
    """Settings for the client's own training function; empty if the run's config has them."""

    @property
    def attempt(self) -> int:
        """Number of earlier attempts at the round."""
        return 0 if self.run is None else self.run.attempt

    @property
    def digest(self) -> str:
        """Identity of this order: a client repeats its answer to a repeated order.

        The digest covers the model's version, not the form in which it was sent.
        """
        order = self.order
        named = (order.round, self.attempt, order.model_hash, order.version, order.lr, order.counted)
        return hashlib.blake2b(repr(named).encode() + self.locations, digest_size=16).hexdigest()


@dataclass(frozen=True)
class Reply:
    """A client's answer with its attachments."""

    answer: Answer
    update: bytes = b""
    """The update, or the locations if the order asked for them."""
    buffers: bytes = b""
    metrics: Mapping[str, float] = field(default_factory=dict)
    release: Release | None = None
    """Differentially private release of the update, if it is one."""


_TYPES: dict[type, dict[str, Any]] = {
    kind: {field.name: field.type for field in fields(kind)}
    for kind in (Order, Plan, Answer, Identity, AuditOrder, LocationQuery, RunName, Release)
}


def pack_order(
    order: Order,
    model: ArrayRecord,
    buffers: ArrayRecord | None = None,
    locations: ArrayRecord | None = None,
    plan: ConfigRecord | None = None,
    secure: bytes = b"",
    facts: ArrayRecord | None = None,
    run: RunName | None = None,
    config: ConfigRecord | None = None,
) -> RecordDict:
    """Pack an order; all clients share the other records, most of them made by `pack_blob`."""
    content = RecordDict({_ORDER: _pack(order), _MODEL: model})
    if buffers is not None:
        content[_BUFFERS] = buffers
    if locations is not None:
        content[_LOCATIONS] = locations
    if plan is not None:
        content[_PLAN] = plan
    if secure:
        content[_SECURE] = pack_blob(secure)
    if facts is not None:
        content[_FACTS] = facts
    if run is not None:
        content[_RUN] = _pack(run)
    if config is not None:
        content[_CONFIG] = config
    return content


def pack_plan(plan: Plan) -> ConfigRecord:
    """Pack a round's plan."""
    return _pack(plan)


def unpack_order(message: Message) -> Parcel:
    """Return the order and its attachments, checked."""
    content = message.content
    return Parcel(
        order=read_order(message),
        model=_blob(content, _MODEL),
        buffers=_blob(content, _BUFFERS, b""),
        locations=read_locations(message),
        audit=_unpack(content, _AUDIT, AuditOrder) if _AUDIT in content else None,
        plan=_unpack(content, _PLAN, Plan) if _PLAN in content else None,
        secure=_blob(content, _SECURE, b""),
        run=_unpack(content, _RUN, RunName) if _RUN in content else None,
        config=_config(content),
    )


def _config(content: RecordDict) -> dict[str, ConfigValue]:
    record = content.get(_CONFIG, ConfigRecord())
    if not isinstance(record, ConfigRecord):
        raise MessageError(f"message: {_CONFIG!r} must be a config record, got {type(record).__name__}")
    return dict(record.items())


def read_facts(message: Message) -> str:
    """Return the facts on the task in an order, for a client with its own samples."""
    try:
        return _blob(message.content, _FACTS).decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"message: the facts must be a text: {error}") from error


def pack_secure(blob: bytes) -> RecordDict:
    """Pack one message of secure aggregation, or its answer."""
    return RecordDict({_SECURE: pack_blob(blob)})


def unpack_secure(message: Message) -> bytes:
    """Return one message of secure aggregation."""
    return _blob(message.content, _SECURE)


def add_query(content: RecordDict, query: LocationQuery) -> RecordDict:
    """Turn the content of an order into that of a query for locations."""
    content[_QUERY] = _pack(query)
    return content


def read_query(message: Message) -> LocationQuery:
    """Return the query in a message that asks for locations."""
    return _unpack(message.content, _QUERY, LocationQuery)


def pack_blob(blob: bytes) -> ArrayRecord:
    """Pack bytes into a record."""
    record = ArrayRecord()  # item by item: its constructor would copy the Array
    record[_BLOB] = Array(_BYTES, (len(blob),), _PACKED, blob)
    return record


def blob_size(record: ArrayRecord) -> int:
    """Return the length of the bytes that `pack_blob` packed."""
    return len(record[_BLOB].data)


def read_blob(record: object) -> bytes | None:
    """Return the bytes that `pack_blob` packed; None if it did not make the record."""
    array = record.get(_BLOB) if isinstance(record, ArrayRecord) else None
    packed = isinstance(array, Array) and array.stype == _PACKED and isinstance(array.data, bytes)
    return array.data if array is not None and packed else None


def pack_reply(reply: Reply, audit: ConfigRecord | None = None) -> RecordDict:
    """Pack a client's reply."""
    content = RecordDict({_ANSWER: _pack(reply.answer), _METRICS: MetricRecord(dict(reply.metrics))})
    if reply.update:
        content[_UPDATE] = pack_blob(reply.update)
    if reply.buffers:
        content[_BUFFERS] = pack_blob(reply.buffers)
    if reply.release is not None:
        content[_RELEASE] = _pack(reply.release)
    if audit is not None:
        content[_AUDIT] = audit
    return content


def pack_metrics(metrics: Mapping[str, float]) -> RecordDict:
    """Pack a client's answer to an evaluation order."""
    return RecordDict({_METRICS: MetricRecord(dict(metrics))})


def read_metrics(message: Message) -> dict[str, float]:
    """Return the finite metrics in a client's answer to an evaluation order."""
    if message.has_error():
        raise MessageError(message.error.reason)
    record = message.content.get(_METRICS)
    if not isinstance(record, MetricRecord):
        raise MessageError(f"message: expected a metric record {_METRICS!r}, got {_names(message.content)}")
    return {name: value for name, value in _numbers(record).items() if math.isfinite(value)}


def unpack_reply(message: Message) -> Reply:
    """Return a client's answer, checked."""
    return read_reply(message.content)


def read_reply(content: RecordDict) -> Reply:
    """Return the reply that `pack_reply` packed, checked."""
    answer = _unpack(content, _ANSWER, Answer)
    metrics = content.get(_METRICS)
    return Reply(
        answer=answer,
        update=b"" if answer.need_model or answer.left_out else _blob(content, _UPDATE),
        buffers=_blob(content, _BUFFERS, b""),
        metrics=_numbers(metrics) if isinstance(metrics, MetricRecord) else {},
        release=_unpack(content, _RELEASE, Release) if _RELEASE in content else None,
    )


def trim_reply(content: RecordDict, *, most: int) -> None:
    """Drop unrequested records of a reply, unread; raise MessageError if the rest is too large.

    ``most`` is the maximum size of one blob in bytes.
    """
    for name in [name for name in content if name not in _OF_REPLIES]:
        del content[name]
    for name in _BLOBS_OF_REPLIES:
        blob = read_blob(content.get(name))
        if blob is not None and len(blob) > most:
            raise MessageError(f"message: {name} may have {most} bytes, got {len(blob)}")
    for name, record in content.items():
        _check_entries(name, record)


def _check_entries(name: str, record: Any) -> None:
    """Refuse a record of many entries: counting its bytes alone takes a kilobyte per entry."""
    lists = [len(value) for value in record.values() if isinstance(value, list)]
    for entries in (len(record), *lists):
        if entries > MOST_ENTRIES_OF_A_RECORD:
            raise MessageError(f"message: {name} may have {MOST_ENTRIES_OF_A_RECORD} entries, got {entries}")


def pack_identity(identity: Identity) -> RecordDict:
    """Pack a node's answer to the identity query."""
    return RecordDict({_IDENTITY: _pack(identity)})


def unpack_identity(message: Message) -> Identity:
    """Return the identity that a node claims."""
    return _unpack(message.content, _IDENTITY, Identity)


def pack_audit(
    truth: Truth | None,
    raw: Mapping[str, Tensor] | None,
    candidates: tuple[Records, Tensor] | None = None,
) -> ConfigRecord:
    """Pack the truth of an audited client: safetensors, never pickle.

    ``candidates``: those of a membership audit, and which of them the client trains on.
    """
    record = ConfigRecord()
    if candidates is not None:
        records, members = candidates
        shown = {"inputs": records.inputs, "labels": records.labels, "members": members}
        record["candidates"] = save({name: tensor.contiguous() for name, tensor in shown.items()})
    if truth is not None:
        shown = {name: tensor for name, tensor in vars(truth).items() if tensor is not None}
        record["truth"] = save({name: tensor.contiguous() for name, tensor in shown.items()})
    if raw is not None:
        record["raw"] = save({name: tensor.contiguous() for name, tensor in raw.items()})
    return record


def add_audit_order(message: Message, audit: AuditOrder) -> None:
    """Ask the client that ``message`` goes to for an audit."""
    message.content[_AUDIT] = _pack(audit)


def read_order(message: Message) -> Order:
    """Return the order in a training message."""
    return _unpack(message.content, _ORDER, Order)


def round_of(message: Message) -> int | None:
    """Return the round in a training message, unchecked: a glance for those who need no more of it."""
    record = message.content.get(_ORDER)
    found = record.get("round") if isinstance(record, ConfigRecord) else None
    return found if isinstance(found, int) else None


def read_locations(message: Message) -> bytes:
    """Return the locations that came with an order, or b""."""
    return _blob(message.content, _LOCATIONS, b"")


def replace_order(
    message: Message,
    order: Order,
    model: ArrayRecord,
    buffers: ArrayRecord | None,
    locations: ArrayRecord | None,
) -> None:
    """Put another order and another model into a training message."""
    content = message.content
    content[_ORDER], content[_MODEL] = _pack(order), model
    for name, record in ((_BUFFERS, buffers), (_LOCATIONS, locations)):
        if record is not None:
            content[name] = record


def replace_update(message: Message, blob: bytes) -> None:
    """Put another update into a reply."""
    message.content[_UPDATE] = pack_blob(blob)


def leave_out(message: Message) -> None:
    """Remove any update from a reply and mark the reply as left out of the round."""
    answer = _unpack(message.content, _ANSWER, Answer)
    if answer.need_model:
        return
    message.content[_ANSWER] = _pack(replace(answer, left_out=True))
    for name in (_UPDATE, _BUFFERS):
        message.content.pop(name, None)


def drop_audit(content: RecordDict) -> None:
    """Drop an unrequested audit record from a reply's content, unread."""
    content.pop(_AUDIT, None)


def read_candidates(content: RecordDict) -> tuple[Records, Tensor] | None:
    """Return the candidates in a reply's audit record, and which of them are members; None without any."""
    record = content.get(_AUDIT)
    blob = record.get("candidates") if isinstance(record, ConfigRecord) else None
    if not isinstance(blob, bytes):
        return None
    try:
        shown = load(blob)
        return Records(shown["inputs"], shown["labels"]), shown["members"]
    except (SafetensorError, TypeError, ValueError, KeyError) as error:
        raise MessageError(f"message: the candidates cannot be read: {error}") from error


def take_audit(content: RecordDict) -> tuple[Truth | None, dict[str, Tensor] | None]:
    """Take the audit record out of a reply's content and return the truth and the raw update."""
    if _AUDIT not in content:
        return None, None
    record = content.pop(_AUDIT)
    if not isinstance(record, ConfigRecord):
        raise MessageError(f"message: the audit record must be a config record, got {type(record).__name__}")
    truth, raw = record.get("truth"), record.get("raw")
    try:
        return (
            Truth(**load(truth)) if isinstance(truth, bytes) else None,
            load(raw) if isinstance(raw, bytes) else None,
        )
    except (SafetensorError, TypeError, ValueError, KeyError) as error:
        raise MessageError(f"message: the audit record cannot be read: {error}") from error


def content_bytes(content: RecordDict, known: dict[int, int] | None = None) -> int:
    """Return the serialised size of a message's content without its audit record.

    The size is the sum of its records' sizes. ``known`` caches the sizes of shared
    records (by identity), so that a model is measured once per round.
    """
    if known is None and _AUDIT not in content:
        return serialised_size(content)
    known = {} if known is None else known
    total = 0
    for name, record in content.items():
        if name == _AUDIT:
            continue
        if name not in (_MODEL, _BUFFERS, _LOCATIONS, _PLAN, _FACTS, _CONFIG):
            total += serialised_size(RecordDict({name: record}))
            continue
        if id(record) not in known:
            known[id(record)] = serialised_size(RecordDict({name: record}))
        total += known[id(record)]
    return total


def _is_word(value: object) -> bool:
    """Return whether a value is a 64-bit integer, the only kind of integer that travels."""
    return isinstance(value, int) and -_WORD <= value < _WORD


def _numbers(metrics: MetricRecord) -> dict[str, float]:
    if len(metrics) > MOST_METRICS:
        raise MessageError(f"message: a reply may have {MOST_METRICS} metrics, got {len(metrics)}")
    try:
        return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}
    except OverflowError as error:
        raise MessageError(f"message: a metric cannot be: {error}") from error


def _pack(
    header: Order | Plan | Answer | Identity | AuditOrder | LocationQuery | RunName | Release,
) -> ConfigRecord:
    # no empty strings: Flower's own count of a record's bytes refuses them
    return ConfigRecord({name: value for name, value in vars(header).items() if value != ""})


def _unpack(content: RecordDict, name: str, kind: type[Header]) -> Header:
    record = content.get(name)
    if not isinstance(record, ConfigRecord):
        raise MessageError(
            f"message: expected a config record {name!r} as fl_app.strategies send it, got {_names(content)}"
        )
    expected = _TYPES[kind]
    found: dict[str, Any] = {key: "" for key, type_name in expected.items() if type_name == "str"}
    found.update(record.items())
    if found.keys() != expected.keys():
        raise MessageError(f"message: record {name!r} must have {sorted(expected)}, got {_names(record)}")
    for key, type_name in expected.items():
        if type(found[key]).__name__ != type_name:
            raise MessageError(f"message: {name}.{key} must be {type_name}, got {_shown(found[key])}")
        if type_name == "int" and not _is_word(found[key]):
            raise MessageError(f"message: {name}.{key} must be a whole number of 64 bits")
        if type_name == "float" and not math.isfinite(found[key]):
            raise MessageError(f"message: {name}.{key} must be finite, got {found[key]}")
    try:
        return kind(**found)
    except ValueError as error:
        raise MessageError(f"message: record {name!r} cannot be: {error}") from error


def _blob(content: RecordDict, name: str, default: bytes | None = None) -> bytes:
    record = content.get(name)
    if record is None and default is not None:
        return default
    blob = read_blob(record)
    if blob is None:
        raise MessageError(f"message: expected bytes in record {name!r}, got {_names(content)}")
    return blob


def _names(records: Iterable[str]) -> list[str]:
    """Return a few of the untrusted names."""
    return [foreign(name) for name in islice(records, _NAMES_SHOWN)]


def _shown(value: object) -> str:
    """Return a value's type and an excerpt: the value may be arbitrarily long."""
    kind = type(value).__name__
    if isinstance(value, str):
        return f"{kind} {foreign(value)[:40]!r}"
    return f"{kind} {value}" if isinstance(value, float) or _is_word(value) else kind
