"""Local settings of a node, from its node-config and environment: identity, policy, log and memory."""

from __future__ import annotations

import functools
import os
import re
from pathlib import Path

from flwr.app import Context, Message

from fl_app.client.disk import MOST_MEGABYTES, DurableMemory
from fl_app.policy import AccountFile, Journal, Policy, Refusal, load_policy
from fl_app.wire.messages import read_order

POLICY, POLICY_LOG = "policy", "policy-log"
"""Keys of a node-config: the policy file and the log of answers."""
_BUNDLE = re.compile(r"\.([0-9a-f]{8,64})$")


def partition_of(context: Context) -> tuple[int, int]:
    """Return the client id of this node, and the number of clients."""
    try:
        return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    except KeyError as missing:
        raise ValueError(
            f"node {context.node_id}: its node-config must have partition-id and num-partitions, "
            f"got {dict(context.node_config)}"
        ) from missing


def policy_file(context: Context) -> str:
    """Return the path of the node's policy; "": it has none."""
    return str(context.node_config.get(POLICY, os.environ.get("FL_APP_POLICY", "")))


def named_policy(context: Context) -> Policy | None:
    """Return the policy in the node's policy file; None: it has none."""
    file = policy_file(context)
    if not file:
        return None
    try:
        return _load(file)
    except ValueError as error:
        raise Refusal("node", str(error)) from error


@functools.lru_cache(maxsize=4)
def _load(file: str) -> Policy:
    return load_policy(Path(file))


@functools.cache
def bundle_hash() -> str:
    """Return the hash of the app bundle that this module was unpacked from; "" if there is none."""
    found = _BUNDLE.search(Path(__file__).resolve().parents[2].name)
    return found[1] if found else ""


def memory_of(context: Context) -> DurableMemory | None:
    """Return the store of this client's memory."""
    folder = folder_of(context)
    if folder is None:
        return None
    megabytes = float(context.node_config.get("state-megabytes", MOST_MEGABYTES))
    return DurableMemory(folder, partition_of(context)[0], int(megabytes * 2**20))


def account_file(context: Context) -> AccountFile | None:
    """Return the file of the privacy account, if the node has a folder for it."""
    folder = folder_of(context)
    return None if folder is None else AccountFile(folder / f"account-{partition_of(context)[0]}.json")


def kind_and_round(message: Message) -> tuple[str, int | None]:
    """Return the type of a message and the round of its order, if readable."""
    try:
        return message.metadata.message_type, read_order(message).round
    except ValueError:
        return message.metadata.message_type, None


def note(context: Context, about: tuple[str, int | None], *, size: int, allowed: bool, decision: str) -> None:
    """Log an answer or a refusal, if the node configures a log."""
    log = context.node_config.get(POLICY_LOG, os.environ.get("FL_APP_POLICY_LOG"))
    folder = folder_of(context)
    if not log and folder is None:
        return
    path = Path(str(log)) if log else Path(str(folder)) / "leaving.jsonl"
    kind, round = about
    Journal(path).write(
        run=context.run_id, round=round, kind=kind, size=size, allowed=allowed, decision=decision
    )


def folder_of(context: Context) -> Path | None:
    """Return this client's own folder, if the node configures one."""
    folder = context.node_config.get("state-dir", os.environ.get("FL_APP_STATE"))
    return Path(str(folder)) if folder else None
