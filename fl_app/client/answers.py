"""Answers of a client to a server's messages: unpack, recall, run the client, store, pack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flwr.app import Context, Message, RecordDict

from fl_app.client.client import Client
from fl_app.client.node import folder_of, kind_and_round, memory_of, note, partition_of
from fl_app.client.secure import SecureMember, SecureSettings
from fl_app.flower.copies import copy_records
from fl_app.wire.messages import (
    EXAMPLES,
    Parcel,
    pack_metrics,
    pack_reply,
    pack_secure,
    read_query,
    unpack_order,
    unpack_secure,
)

MakeClient = Callable[[Message, Parcel, Context, RecordDict], Client]
"""``make(message, parcel, context, records)``: returns the client for an order; ``records`` is its memory."""


def answer_locate(message: Message, context: Context, make: MakeClient) -> Message:
    """Name the largest entries of this round's update."""
    parcel, memory = unpack_order(message), memory_of(context)
    client = make(message, parcel, context, context.state)
    if memory is not None:
        memory.recall(context.state, parcel, locating=True)
    # not stored: a restarted client computes the same gradient again
    reply = client.locate(parcel, read_query(message), context.state)
    _note_answer(message, context, client, parcel.order.round)
    return Message(pack_reply(reply), reply_to=message)


def answer_train(message: Message, context: Context, make: MakeClient) -> Message:
    """Train as ordered."""
    parcel, memory = unpack_order(message), memory_of(context)
    # Flower keeps a context also if the app raised: what cannot be written down must not be in it
    trial = context.state if memory is None else copy_records(context.state)
    client = make(message, parcel, context, trial)
    since = {} if memory is None else memory.recall(trial, parcel, newest=client.guard is not None)
    reply, evidence = client.answer(parcel, trial)
    if memory is not None and not reply.answer.need_model:
        memory.keep(trial, parcel, since)
    context.state = trial
    _note_answer(message, context, client, parcel.order.round)
    return Message(pack_reply(reply, evidence), reply_to=message)


def answer_evaluate(message: Message, context: Context, make: MakeClient) -> Message:
    """Evaluate the model in an order."""
    parcel = unpack_order(message)
    samples, metrics = make(message, parcel, context, context.state).evaluate(parcel)
    return Message(pack_metrics({EXAMPLES: float(samples)} | metrics), reply_to=message)


def answer_secure(
    kind: str,
    message: Message,
    context: Context,
    settings: SecureSettings | None,
    *,
    min_cohort: int,
    min_difference: int = 0,
    guarded: bool = False,
) -> Message:
    """Answer one of the exchanges of secure aggregation; ``guarded``: note it in the node's log."""
    client, _ = partition_of(context)
    if settings is None:
        raise PermissionError(f"client {client}: is not set to aggregate securely: secagg=off")
    crowd = max(settings.min_clients, min_cohort)
    settings = replace(settings, min_clients=crowd, min_difference=min_difference)
    member = SecureMember(settings, client, context.state, folder_of(context))
    answer = member.answer(kind, unpack_secure(message))
    if guarded:
        note(context, kind_and_round(message), size=len(answer), allowed=True, decision="policy")
    return Message(pack_secure(answer), reply_to=message)


def _note_answer(message: Message, context: Context, client: Client, round: int) -> None:
    if client.guard is not None:
        about = (message.metadata.message_type, round)
        note(context, about, size=client.guard.size, allowed=True, decision="policy")
