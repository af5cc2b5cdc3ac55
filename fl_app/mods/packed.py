"""Packed replies: the defended change as one blob of our codec, in place of whole arrays.

New weights under a pruned change are as long as any others: only against the message's arrays, which both
ends hold, does the change become short. The server's strategy must be wrapped in
`fl_app.strategies.Unpacked`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from fl_app.mods.arrays import Unreadable, read_arrays, widened, write_array
from fl_app.mods.records import Pair
from fl_app.types import Update
from fl_app.wire import CodecError, Drawn, decode, encode
from fl_app.wire.messages import pack_blob, read_blob

RECORD = "fl_app.packed"
"""Record that says how a reply was packed."""
_BUFFERS = "fl_app.packed.buffers"


@dataclass(frozen=True)
class Packed:
    """Parts of a packed reply."""

    name: str
    """The record that holds the blob, and the arrays once it is unpacked."""
    base: str
    added: bool
    """Whether the arrays are the base plus the change."""
    names: tuple[str, ...]
    buffers: tuple[str, ...]


def pack_update(
    content: RecordDict,
    pair: Pair,
    change: Update,
    buffers: Update,
    *,
    added: bool,
    drawn: Drawn | None = None,
) -> None:
    """Put a packed change in the place of a reply's arrays; ``drawn``: its public random positions."""
    content[pair.name] = pack_blob(encode(change, drawn=drawn))
    if buffers:
        content[_BUFFERS] = pack_blob(encode(buffers))
    content[RECORD] = ConfigRecord(
        {
            "arrays": pair.name,
            "base": pair.base,
            "added": added,
            "names": list(change),
            "buffers": list(buffers),
        }
    )


def is_packed(content: RecordDict) -> bool:
    """Return whether a reply is packed."""
    return RECORD in content


def unpack_update(content: RecordDict, asked: RecordDict) -> tuple[Pair, Update, Update]:
    """Replace a packed change by the arrays that the client would have sent; return change and buffers.

    Raise `Unreadable` for anything that does not answer ``asked``; then ``content`` is as it was.
    """
    parts = _read(content)
    record = asked.get(parts.base)
    if not isinstance(record, ArrayRecord):
        raise Unreadable(f"packed reply: the message has no arrays named {parts.base!r}")
    base = read_arrays(record, "message")
    named = [*parts.names, *parts.buffers]
    if len(set(named)) != len(named) or not base.keys() >= set(named):
        raise Unreadable("packed reply: its names are not those of the message")
    wide = {name: widened(base[name]) for name in parts.names if base[name].is_floating_point()}
    if len(wide) != len(parts.names):
        raise Unreadable("packed reply: a change of whole numbers")
    try:
        change = decode(_blob(content, parts.name), wide)
        like = {name: base[name] for name in parts.buffers}
        buffers = decode(_blob(content, _BUFFERS), like) if like else {}
    except CodecError as error:
        raise Unreadable(f"packed reply: {error}") from error
    arrays = (rebuilt(base, change) if parts.added else as_sent(base, change)) | buffers
    content[parts.name] = record_of(record, {name: arrays[name] for name in base if name in arrays})
    for name in (RECORD, _BUFFERS):
        content.pop(name, None)
    return Pair(parts.name, parts.base), change, buffers


def rebuilt(base: Update, change: Update) -> Update:
    """Return the base plus a change; where nothing changed, the base bit for bit."""
    return {
        name: base[name].where(moved == 0, (widened(base[name]) + moved).to(base[name].dtype))
        for name, moved in change.items()
    }


def as_sent(base: Update, change: Update) -> Update:
    """Return a change in the types of the base."""
    return {name: moved.to(base[name].dtype) for name, moved in change.items()}


def record_of(like: ArrayRecord, tensors: Mapping[str, object]) -> ArrayRecord:
    """Return a record of tensors, labelled as the arrays of ``like``."""
    record = ArrayRecord()  # item by item: the constructor would copy every Array
    for name, tensor in tensors.items():
        record[name] = write_array(like[name], tensor)  # type: ignore[arg-type]
    return record


def _read(content: RecordDict) -> Packed:
    record = content.get(RECORD)
    fields = dict(record.items()) if isinstance(record, ConfigRecord) else {}
    kinds = {"arrays": str, "base": str, "added": bool, "names": list, "buffers": list}
    if fields.keys() != kinds.keys() or any(not isinstance(fields[k], kind) for k, kind in kinds.items()):
        raise Unreadable("packed reply: its description is damaged")
    names, buffers = fields["names"], fields["buffers"]
    if any(not isinstance(name, str) for name in (*names, *buffers)):  # type: ignore[misc]
        raise Unreadable("packed reply: its names are no text")
    return Packed(
        str(fields["arrays"]),
        str(fields["base"]),
        bool(fields["added"]),
        tuple(names),  # type: ignore[arg-type]
        tuple(buffers),  # type: ignore[arg-type]
    )


def _blob(content: RecordDict, name: str) -> bytes:
    blob = read_blob(content.get(name))
    if blob is None:
        raise Unreadable(f"packed reply: {name!r} is no blob")
    return blob
