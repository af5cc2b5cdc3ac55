"""The Flower ClientApp: reads a message, lets a client answer, packs the reply."""

from __future__ import annotations

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.client.answers import answer_evaluate, answer_locate, answer_secure, answer_train
from fl_app.client.client import Client
from fl_app.client.guard import Books, Guard
from fl_app.client.node import account_file, bundle_hash, named_policy, partition_of, policy_file
from fl_app.client.refusing import CODES, Codes, refuse_in_codes
from fl_app.client.vector_client import VectorClient
from fl_app.config.build import OwnData, client_parts, secure_settings
from fl_app.config.compose import ConfigError
from fl_app.config.run_keys import overrides_of
from fl_app.config.trust import switch, trust_of
from fl_app.data import DataUnavailable
from fl_app.policy import DEFAULT, Policy
from fl_app.wire.messages import (
    ENDORSE,
    OFFER,
    SHARE,
    UNMASK,
    Identity,
    Parcel,
    pack_identity,
    read_facts,
)

_DATA_ROOT = "data-root"
"""In a node's config: the folder with samples of its own, all of which it trains on."""
ALLOW_AUDIT = "allow-audit"
"""Key of a node-config: consent to audits where there is no policy's file."""
_DEFAULTS = {
    allowed: DEFAULT.model_copy(update={"audit": DEFAULT.audit.model_copy(update={"allowed": allowed})})
    for allowed in (True, False)
}
_CODES: Codes = ((ConfigError, "config"), (DataUnavailable, "data"), *CODES)

app = ClientApp()


def _trusts(context: Context) -> bool:
    """Say whether the node trusts its runs; one whose switches cannot be read does not."""
    try:
        return trust_of(context.node_config).whole
    except ConfigError:
        return False


_guarded = refuse_in_codes(_trusts, _CODES)


@app.query("identify")
@_guarded
def identify(message: Message, context: Context) -> Message:
    """Say which client this node is, whether it may be audited, and if its samples are its own."""
    client, num_clients = partition_of(context)
    identity = Identity(
        client, num_clients, _policy(context).audit.allowed, _DATA_ROOT in context.node_config
    )
    return Message(pack_identity(identity), reply_to=message)


@app.query("locate")
@_guarded
def locate(message: Message, context: Context) -> Message:
    """Name the largest entries of this round's update."""
    return answer_locate(message, context, _client)


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
    return answer_train(message, context, _client)


@app.evaluate()
@_guarded
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model on this client's own samples."""
    return answer_evaluate(message, context, _client)


def _secure(kind: str, message: Message, context: Context) -> Message:
    settings = secure_settings(_overrides(context), trust_of(context.node_config))
    policy = _policy(context)
    return answer_secure(
        kind,
        message,
        context,
        settings,
        min_cohort=policy.min_cohort,
        min_difference=policy.secure_aggregation.min_difference,
        guarded=_has_policy(context),
    )


def _client(message: Message, parcel: Parcel, context: Context, records: RecordDict) -> Client:
    root = context.node_config.get(_DATA_ROOT)
    own = None if root is None else OwnData(str(root), read_facts(message))
    parts = client_parts(_overrides(context), trust_of(context.node_config), own)
    policy = _policy(context)
    guard = None
    if parts.plan is not None and _has_policy(context):
        books = Books(account_file(context), records)
        guard = Guard(policy, parts.plan, books, context.run_id, bundle_hash(), parts.last_move)
    kind = Client if parts.defense.scheme is None else VectorClient
    return kind(parts, *partition_of(context), policy.audit.allowed, guard)


def _has_policy(context: Context) -> bool:
    """Say whether runs are held to a policy: everywhere but on a node that trusts them and names no file."""
    return bool(policy_file(context)) or not _trusts(context)


def _policy(context: Context) -> Policy:
    """Return the node's policy: its file's, or the default with the consent that its node-config gives."""
    named = named_policy(context)
    if named is not None:
        return named
    return _DEFAULTS[switch(context.node_config, ALLOW_AUDIT, "FL_APP_ALLOW_AUDIT")]


def _overrides(context: Context) -> str:
    return overrides_of(context.run_config, partition_of(context)[1])
