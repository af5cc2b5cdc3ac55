"""The Flower ClientApp: reads a message, lets a client answer, packs the reply."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.client.client import Client
from fl_app.client.disk import MOST_MEGABYTES, DurableMemory
from fl_app.client.secure import SecureMember
from fl_app.client.vector_client import VectorClient
from fl_app.config.build import OwnData, client_parts, secure_settings
from fl_app.config.trust import trust_of
from fl_app.flower.copies import copy_records
from fl_app.wire.messages import (
    ENDORSE,
    OFFER,
    SHARE,
    UNMASK,
    Identity,
    pack_identity,
    pack_reply,
    pack_secure,
    read_facts,
    read_query,
    unpack_order,
    unpack_secure,
)

_DATA_ROOT = "data-root"
"""In a node's config: the folder with samples of its own, all of which it trains on."""

app = ClientApp()


@app.query("identify")
def identify(message: Message, context: Context) -> Message:
    """Say which client this node is, whether it may be audited, and if its samples are its own."""
    client, num_clients = _partition(context)
    identity = Identity(client, num_clients, _allows_audit(context), _DATA_ROOT in context.node_config)
    return Message(pack_identity(identity), reply_to=message)


@app.query("locate")
def locate(message: Message, context: Context) -> Message:
    """Name the largest entries of this round's update."""
    parcel, memory = unpack_order(message), _memory(context)
    if memory is not None:
        memory.recall(context.state, parcel, locating=True)
    # not kept: the gradient that it computes now would be the same after a restart
    reply = _client(message, context).locate(parcel, read_query(message), context.state)
    return Message(pack_reply(reply), reply_to=message)


@app.query("offer")
def offer(message: Message, context: Context) -> Message:
    """Secure aggregation, exchange 1: agree to the terms and offer keys."""
    return _secure(OFFER, message, context)


@app.query("share")
def share(message: Message, context: Context) -> Message:
    """Secure aggregation, exchange 2: give every participant a share of the secrets."""
    return _secure(SHARE, message, context)


@app.query("endorse")
def endorse(message: Message, context: Context) -> Message:
    """Secure aggregation with identities: sign whose vectors came."""
    return _secure(ENDORSE, message, context)


@app.query("unmask")
def unmask(message: Message, context: Context) -> Message:
    """Secure aggregation, last exchange: give back shares, once."""
    return _secure(UNMASK, message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train as ordered."""
    parcel, memory = unpack_order(message), _memory(context)
    if memory is None:
        reply, evidence = _client(message, context).answer(parcel, context.state)
        return Message(pack_reply(reply, evidence), reply_to=message)
    # Flower keeps a context also if the app raised: what cannot be written down must not be in it
    trial = copy_records(context.state)
    since = memory.recall(trial, parcel)
    reply, evidence = _client(message, context).answer(parcel, trial)
    if not reply.answer.need_model:
        memory.keep(trial, parcel, since)
    context.state = trial
    return Message(pack_reply(reply, evidence), reply_to=message)


def _secure(kind: str, message: Message, context: Context) -> Message:
    client, _ = _partition(context)
    settings = secure_settings(_overrides(context), trust_of(context.node_config))
    if settings is None:
        raise PermissionError(f"client {client}: is not set to aggregate securely: secagg=off")
    member = SecureMember(settings, client, context.state)
    return Message(pack_secure(member.answer(kind, unpack_secure(message))), reply_to=message)


def _client(message: Message, context: Context) -> Client:
    root = context.node_config.get(_DATA_ROOT)
    own = None if root is None else OwnData(str(root), read_facts(message))
    parts = client_parts(_overrides(context), trust_of(context.node_config), own)
    kind = Client if parts.defense.scheme is None else VectorClient
    return kind(parts, *_partition(context), _allows_audit(context))


def _overrides(context: Context) -> str:
    return str(context.run_config.get("overrides", ""))


def _partition(context: Context) -> tuple[int, int]:
    try:
        return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    except KeyError as missing:
        raise ValueError(
            f"node {context.node_id}: its node-config must have partition-id and num-partitions, "
            f"got {dict(context.node_config)}"
        ) from missing


def _memory(context: Context) -> DurableMemory | None:
    """Return where this client keeps its memory, if whoever runs it says so."""
    folder = context.node_config.get("state-dir", os.environ.get("FL_APP_STATE"))
    if not folder:
        return None
    megabytes = float(context.node_config.get("state-megabytes", MOST_MEGABYTES))
    return DurableMemory(Path(str(folder)), _partition(context)[0], int(megabytes * 2**20))


def _allows_audit(context: Context) -> bool:
    """Read the switch of whoever runs this client (`flwr run` leaves only the environment)."""
    return bool(context.node_config.get("allow-audit", os.environ.get("FL_APP_ALLOW_AUDIT") == "1"))
