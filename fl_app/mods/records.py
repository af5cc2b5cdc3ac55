"""Finding an update in a client's reply: the arrays that answer those of the message, and their form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from fl_app.mods.arrays import Unreadable
from fl_app.types import Update

Returns = Literal["auto", "weights", "delta", "gradient"]
"""Form of an app's arrays: new weights, their change, or a gradient; ``auto``: found by comparison."""
FORMS = ("auto", "weights", "delta", "gradient")
ROUND = ("server-round", "server_round", "current_round", "round")
"""Names under which servers tell the round."""
MOST_NUMBERS = 64
"""Most numbers of a list beside the arrays."""
_NEAR = 0.5


@dataclass(frozen=True)
class Pair:
    """Arrays of a reply, and the arrays of the message that they answer."""

    name: str
    """Name of the reply's record."""
    base: str
    """Name of the message's record."""


def trains(message: Message) -> bool:
    """Return whether a message asks for training."""
    return message.metadata.message_type.split(".", 1)[0] == "train"


def round_of(message: Message) -> int | None:
    """Return the round that a message names; None: none."""
    for record in message.content.config_records.values():
        for name in ROUND:
            value = record.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                return value
    group = message.metadata.group_id
    return int(group) if group.isascii() and group.isdigit() and len(group) < 10 else None


def find_pair(asked: RecordDict, reply: RecordDict) -> Pair | None:
    """Return the one record of arrays in a reply with its base; None if the reply has no arrays.

    The message's arrays in the reply once more, under the same name, are no second update.
    """
    bases, arrays = asked.array_records, reply.array_records
    if not arrays:
        return None
    if len(arrays) != 1:
        raise Unreadable(f"expected one ArrayRecord in the reply, got {sorted(arrays)}")
    name = next(iter(arrays))
    if name in bases:
        return Pair(name, name)
    if len(bases) != 1:
        raise Unreadable(
            f"expected one ArrayRecord in the message or one named {name!r}, got {sorted(bases)}"
        )
    return Pair(name, next(iter(bases)))


def check_beside(asked: RecordDict, reply: RecordDict) -> None:
    """Refuse bytes and long lists beside the arrays: they could be the update in another form."""
    for name, record in reply.items():
        if isinstance(record, ArrayRecord) or record == asked.get(name):
            continue
        if not isinstance(record, ConfigRecord | MetricRecord):
            raise Unreadable(f"record {name!r} is of the unknown type {type(record).__name__}")
        for key, value in record.items():
            if isinstance(value, bytes):
                raise Unreadable(f"record {name!r} holds bytes under {key!r}, which may be an update")
            if isinstance(value, list) and len(value) > MOST_NUMBERS:
                raise Unreadable(
                    f"record {name!r} holds {len(value)} values under {key!r}, at most {MOST_NUMBERS} may "
                    "stand beside the arrays"
                )


def check_shapes(base: Mapping[str, Tensor], reply: Mapping[str, Tensor]) -> None:
    """Refuse arrays that do not answer those of the message; some of its named arrays may be missing."""
    if not reply:
        return
    unnamed = all(name.isdigit() for name in reply)
    if not reply.keys() <= base.keys() or (unnamed and len(reply) != len(base)):
        raise Unreadable(
            f"expected arrays named as the message's {_few(base)}, got {_few(reply)}: an update must answer "
            "what the message brought"
        )
    for name, tensor in reply.items():
        if tensor.shape != base[name].shape:
            expected, got = tuple(base[name].shape), tuple(tensor.shape)
            raise Unreadable(f"{name!r}: expected shape {expected}, got {got}")


def form_of(base: Update, reply: Update) -> Literal["weights", "delta"] | None:
    """Return the form of a reply; None if every entry of the base is 0, where both are the same.

    New weights lie near the old ones; a change is no longer than they are, and points elsewhere. Whatever is
    neither is refused.
    """
    start, moved = _norm(base), _norm({name: reply[name] - base[name] for name in base})
    if start == 0:
        return None
    if moved <= _NEAR * start:
        return "weights"
    size = _norm(reply)
    if size <= start and start**2 + size**2 - moved**2 <= 2 * _NEAR * start * size:  # the cosine theorem
        return "delta"
    raise Unreadable(
        f"cannot tell whether the reply holds weights or a change of them (norm {size:.3g}, that of "
        f'the message {start:.3g}): say returns="weights", "delta" or "gradient"'
    )


def _norm(tensors: Update) -> float:
    norms = [torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in tensors.values()]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


def _few(tensors: Mapping[str, Tensor]) -> str:
    names = list(tensors)
    return f"{names[:4]}" if len(names) <= 4 else f"{names[:3]} … ({len(names)})"
