"""Clients that answer orders with lies: each a sabotage of `federations.SabotagedApp`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from federations import SMALL, Sabotage, with_update
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from safetensors.torch import save
from torch import Tensor

from fl_app.config.build import server_parts
from fl_app.wire import decode, encode
from fl_app.wire.messages import (
    Answer,
    pack_identity,
    pack_reply,
    pack_secure,
    unpack_identity,
    unpack_reply,
    unpack_secure,
)

_OF_ANSWERS = Answer.__dataclass_fields__


def says(**fields: Any) -> Sabotage:
    """Change fields of the answer, or of the reply around it."""

    def lie(order: Message, reply: Message, context: Context) -> Message:
        old = unpack_reply(reply)
        inner = {name: value for name, value in fields.items() if name in _OF_ANSWERS}
        outer = {name: value for name, value in fields.items() if name not in _OF_ANSWERS}
        reply.content = pack_reply(replace(old, answer=replace(old.answer, **inner), **outer))
        return reply

    return lie


def sends(change: Callable[[str, Tensor], Tensor], model: str = "") -> Sabotage:
    """Send another update for every parameter of the model."""

    def lie(order: Message, reply: Message, context: Context) -> Message:
        parameters = server_parts(f"{SMALL} {model}").model.named_parameters()
        return with_update(reply, encode({name: change(name, p.detach()) for name, p in parameters}))

    return lie


def sends_vector(change: Callable[[Tensor], Tensor], size: int) -> Sabotage:
    """Send another vector in the place of a sketch of ``size`` values."""
    return lambda order, reply, context: with_update(reply, encode({"values": change(torch.zeros(size))}))


def sends_buffers(model: str, change: Callable[[str, Tensor], Tensor]) -> Sabotage:
    """Send other buffers."""

    def lie(order: Message, reply: Message, context: Context) -> Message:
        old, like = unpack_reply(reply), dict(server_parts(f"{SMALL} {model}").model.named_buffers())
        buffers = {name: change(name, tensor) for name, tensor in decode(old.buffers, like).items()}
        reply.content = pack_reply(replace(old, buffers=encode(buffers)))
        return reply

    return lie


def adds(**records: ConfigRecord | MetricRecord) -> Sabotage:
    """Add records to a reply, or put them in the place of others."""

    def lie(order: Message, reply: Message, context: Context) -> Message:
        for name, record in records.items():
            reply.content[name] = record
        return reply

    return lie


def is_called(**fields: Any) -> Sabotage:
    """Give another identity."""

    def lie(order: Message, reply: Message, context: Context) -> Message:
        reply.content = pack_identity(replace(unpack_identity(reply), **fields))
        return reply

    return lie


def fails(reason: str) -> Sabotage:
    """Answer with an error of a text."""
    return lambda order, reply, context: Message(Error(code=0, reason=reason), reply_to=order)


def names_records(names: list[str]) -> Sabotage:
    """Send empty records of these names alone."""

    def lie(order: Message, reply: Message, context: Context) -> Message:
        reply.content = RecordDict({name: ConfigRecord({}) for name in names})
        return reply

    return lie


def flips(*places: int) -> Sabotage:
    """Flip a bit at places of a message of secure aggregation."""

    def lie(order: Message, reply: Message, context: Context) -> Message:
        blob = bytearray(unpack_secure(reply))
        for place in places:
            blob[place] ^= 1
        reply.content = pack_secure(bytes(blob))
        return reply

    return lie


def shows(**tensors: Tensor) -> Sabotage:
    """Show another truth to an audit, asked or not."""
    return adds(audit=ConfigRecord({"truth": save(tensors)}))
