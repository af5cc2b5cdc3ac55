"""The Flower ClientApp: reads a message, lets a client answer, packs the reply."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.client.client import Client
from fl_app.client.disk import MOST_MEGABYTES, DurableMemory
from fl_app.client.guard import Books, Guard
from fl_app.client.secure import SecureMember
from fl_app.client.vector_client import VectorClient
from fl_app.config.build import OwnData, client_parts, secure_settings
from fl_app.config.compose import ConfigError
from fl_app.config.trust import switch, trust_of
from fl_app.data import DataUnavailable
from fl_app.flower.copies import copy_records
from fl_app.policy import DEFAULT, AccountFile, Journal, Policy, Refusal, load_policy
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
    read_order,
    read_query,
    unpack_order,
    unpack_secure,
)

logger = logging.getLogger(__name__)

_DATA_ROOT = "data-root"
"""In a node's config: the folder with samples of its own, all of which it trains on."""
POLICY, POLICY_LOG, ALLOW_AUDIT = "policy", "policy-log", "allow-audit"
"""Keys of a node-config: the policy's file, the log of what left, and consent where there is no file."""
_CODES: tuple[tuple[type[Exception], str], ...] = (
    (ConfigError, "config"),
    (DataUnavailable, "data"),
    (PermissionError, "model"),
    (OSError, "keep"),
    (ValueError, "message"),
)
"""Texts that a server gets for an error; the first match counts."""
_BUNDLE = re.compile(r"\.([0-9a-f]{8,64})$")
_Handler = Callable[[Message, Context], Message]

app = ClientApp()


def _guarded(handler: _Handler) -> _Handler:
    """Let a node that does not trust its runs say codes and fixed texts alone; its own log has the rest."""

    @functools.wraps(handler)
    def handle(message: Message, context: Context) -> Message:
        try:
            return handler(message, context)
        except Exception as error:
            if _trusts(context):
                raise
            code = error.code if isinstance(error, Refusal) else _code_of(error)
            if isinstance(error, Refusal):
                logger.warning("run %d: refused [%s]: %s", context.run_id, code, error.detail)
            else:
                logger.warning("run %d: failed [%s]", context.run_id, code, exc_info=error)
            refusal = Refusal(code)
        try:
            _note(context, _kind_and_round(message), size=0, allowed=False, decision=refusal.code)
        except OSError as error:  # its text names files of the node
            logger.error("run %d: the refusal cannot be noted: %s", context.run_id, error)
        raise refusal

    return handle


def _code_of(error: Exception) -> str:
    return next((code for kind, code in _CODES if isinstance(error, kind)), "internal")


@app.query("identify")
@_guarded
def identify(message: Message, context: Context) -> Message:
    """Say which client this node is, whether it may be audited, and if its samples are its own."""
    client, num_clients = _partition(context)
    identity = Identity(
        client, num_clients, _policy(context).audit.allowed, _DATA_ROOT in context.node_config
    )
    return Message(pack_identity(identity), reply_to=message)


@app.query("locate")
@_guarded
def locate(message: Message, context: Context) -> Message:
    """Name the largest entries of this round's update."""
    parcel, memory = unpack_order(message), _memory(context)
    client = _client(message, context)
    if memory is not None:
        memory.recall(context.state, parcel, locating=True)
    # not kept: the gradient that it computes now would be the same after a restart
    reply = client.locate(parcel, read_query(message), context.state)
    _note_answer(message, context, client, parcel.order.round)
    return Message(pack_reply(reply), reply_to=message)


@app.query("offer")
@_guarded
def offer(message: Message, context: Context) -> Message:
    """Secure aggregation, exchange 1: agree to the terms and offer keys."""
    return _secure(OFFER, message, context)


@app.query("share")
@_guarded
def share(message: Message, context: Context) -> Message:
    """Secure aggregation, exchange 2: give every participant a share of the secrets."""
    return _secure(SHARE, message, context)


@app.query("endorse")
@_guarded
def endorse(message: Message, context: Context) -> Message:
    """Secure aggregation with identities: sign the list of clients whose vectors arrived."""
    return _secure(ENDORSE, message, context)


@app.query("unmask")
@_guarded
def unmask(message: Message, context: Context) -> Message:
    """Secure aggregation, last exchange: give back shares, once."""
    return _secure(UNMASK, message, context)


@app.train()
@_guarded
def train(message: Message, context: Context) -> Message:
    """Train as ordered."""
    parcel, memory = unpack_order(message), _memory(context)
    # Flower keeps a context also if the app raised: what cannot be written down must not be in it
    trial = context.state if memory is None else copy_records(context.state)
    client = _client(message, context, trial)
    since = {} if memory is None else memory.recall(trial, parcel, newest=client.guard is not None)
    reply, evidence = client.answer(parcel, trial)
    if memory is not None and not reply.answer.need_model:
        memory.keep(trial, parcel, since)
    context.state = trial
    _note_answer(message, context, client, parcel.order.round)
    return Message(pack_reply(reply, evidence), reply_to=message)


def _secure(kind: str, message: Message, context: Context) -> Message:
    client, _ = _partition(context)
    settings = secure_settings(_overrides(context), trust_of(context.node_config))
    if settings is None:
        raise PermissionError(f"client {client}: is not set to aggregate securely: secagg=off")
    crowd = max(settings.min_clients, _policy(context).min_cohort)
    apart = _policy(context).secure_aggregation.min_difference
    settings = replace(settings, min_clients=crowd, min_difference=apart)
    member = SecureMember(settings, client, context.state, _folder(context))
    answer = member.answer(kind, unpack_secure(message))
    if _has_policy(context):
        _note(context, _kind_and_round(message), size=len(answer), allowed=True, decision="policy")
    return Message(pack_secure(answer), reply_to=message)


def _client(message: Message, context: Context, records: RecordDict | None = None) -> Client:
    root = context.node_config.get(_DATA_ROOT)
    own = None if root is None else OwnData(str(root), read_facts(message))
    parts = client_parts(_overrides(context), trust_of(context.node_config), own)
    policy = _policy(context)
    guard = None
    if parts.plan is not None and _has_policy(context):
        books = Books(_account_file(context), context.state if records is None else records)
        guard = Guard(policy, parts.plan, books, context.run_id, _bundle())
    kind = Client if parts.defense.scheme is None else VectorClient
    return kind(parts, *_partition(context), policy.audit.allowed, guard)


def _trusts(context: Context) -> bool:
    """Say whether the node trusts its runs; one whose switches cannot be read does not."""
    try:
        return trust_of(context.node_config).whole
    except ConfigError:
        return False


def _has_policy(context: Context) -> bool:
    """Say whether runs are held to a policy: everywhere but on a node that trusts them and names no file."""
    return bool(_policy_file(context)) or not _trusts(context)


def _policy_file(context: Context) -> str:
    return str(context.node_config.get(POLICY, os.environ.get("FL_APP_POLICY", "")))


def _policy(context: Context) -> Policy:
    """Return the node's policy: its file's, or the default with the consent that its node-config gives."""
    file = _policy_file(context)
    if file:
        try:
            return _load(file)
        except ValueError as error:
            raise Refusal("node", str(error)) from error
    allowed = switch(context.node_config, ALLOW_AUDIT, "FL_APP_ALLOW_AUDIT")
    return DEFAULT.model_copy(update={"audit": DEFAULT.audit.model_copy(update={"allowed": allowed})})


@functools.lru_cache(maxsize=4)
def _load(file: str) -> Policy:
    return load_policy(Path(file))


@functools.cache
def _bundle() -> str:
    """Return the hash of the app bundle that this module was unpacked from; "" if there is none."""
    found = _BUNDLE.search(Path(__file__).resolve().parents[1].name)
    return found[1] if found else ""


def _note_answer(message: Message, context: Context, client: Client, round: int) -> None:
    if client.guard is not None:
        about = (message.metadata.message_type, round)
        _note(context, about, size=client.guard.size, allowed=True, decision="policy")


def _kind_and_round(message: Message) -> tuple[str, int | None]:
    try:
        return message.metadata.message_type, read_order(message).round
    except ValueError:
        return message.metadata.message_type, None


def _note(
    context: Context, about: tuple[str, int | None], *, size: int, allowed: bool, decision: str
) -> None:
    """Write down what left, or was refused, if the node has a place for it."""
    log = context.node_config.get(POLICY_LOG, os.environ.get("FL_APP_POLICY_LOG"))
    folder = _folder(context)
    if not log and folder is None:
        return
    path = Path(str(log)) if log else Path(str(folder)) / "leaving.jsonl"
    kind, round = about
    Journal(path).write(
        run=context.run_id, round=round, kind=kind, size=size, allowed=allowed, decision=decision
    )


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


def _folder(context: Context) -> Path | None:
    """Return this client's own folder, if the node configures one."""
    folder = context.node_config.get("state-dir", os.environ.get("FL_APP_STATE"))
    return Path(str(folder)) if folder else None


def _memory(context: Context) -> DurableMemory | None:
    """Return where this client keeps its memory."""
    folder = _folder(context)
    if folder is None:
        return None
    megabytes = float(context.node_config.get("state-megabytes", MOST_MEGABYTES))
    return DurableMemory(folder, _partition(context)[0], int(megabytes * 2**20))


def _account_file(context: Context) -> AccountFile | None:
    folder = _folder(context)
    return None if folder is None else AccountFile(folder / f"account-{_partition(context)[0]}.json")
