"""Enforcement of a node's policy on one message to any app: the app answers, the node decides what leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fl_app.client.guard import Books
from fl_app.client.node import POLICY, POLICY_LOG, folder_of, named_policy, note
from fl_app.enforcement.replies import rebuild_reply
from fl_app.flower.copies import copy_message, copy_records
from fl_app.flower.internals import CLIENT_APP_RAISED, pack_records, unpack_records
from fl_app.mods import TransformMod, Unreadable, mod_named, none_mod
from fl_app.mods.named import ModOptions
from fl_app.mods.records import round_of
from fl_app.policy import (
    DEFAULT,
    Account,
    AccountFile,
    Part,
    Policy,
    Refusal,
    RunAccount,
    RunPlan,
    check_plan,
)
from fl_app.wire.messages import content_bytes

logger = logging.getLogger(__name__)

PREFIX = "fl_app.node/"
"""Beginning of the names of the node's own records in a context; no app sees them."""
_OWN_KEYS = {POLICY, POLICY_LOG, "state-dir"}
"""Keys of the node-config that are no affair of an app's."""
_ANY_ROUND = (1 << 31) - 1


@dataclass(frozen=True)
class AppIdentity:
    """An app, as the node knows it."""

    id: str = ""
    version: str = ""
    bundle: str = ""
    """SHA-256 of the bundle's content."""


@dataclass(frozen=True)
class AppReply:
    """An app's reply as it left the app: bytes that nobody has read."""

    content: bytes | None
    """Records; None: the app failed."""
    state: bytes = b""
    """The app's records in its context, for the next message."""
    detail: str = ""
    """Reason of a failure, for the node's own log."""


CallApp = Callable[[Message, Context, Policy, int], AppReply]
"""Lets the app answer under a policy; the last argument is the most bytes that it may answer with."""


@dataclass(frozen=True)
class Enforcer:
    """ClientApp in an app's place that applies the node's policy to what the app answers."""

    app: AppIdentity
    call: CallApp
    policy: Policy | None = None
    """None: the one that the node-config names."""
    _mods: dict[str, tuple[TransformMod, ...]] = field(default_factory=dict, repr=False)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message by what may leave, or by an error of a code and a fixed text."""
        about = (message.metadata.message_type[:80], round_of(message))
        try:
            content, size = self._answer(message, context)
            note(context, about, size=size, allowed=True, decision="policy")
            return Message(content, reply_to=message)
        except Refusal as error:
            refusal = error
        except Unreadable as error:
            refusal = Refusal("unreadable", str(error))
        except OSError as error:
            refusal = Refusal("keep", str(error))
        except Exception as error:  # nothing of it may leave, whatever it is
            logger.exception("run %d: the reply could not be checked", context.run_id)
            refusal = Refusal("internal", type(error).__name__)
        logger.warning("run %d: refused [%s]: %s", context.run_id, refusal.code, refusal.detail)
        try:
            note(context, about, size=0, allowed=False, decision=refusal.code)
        except OSError as error:
            logger.error("run %d: the refusal cannot be noted: %s", context.run_id, error)
        return Message(Error(code=CLIENT_APP_RAISED, reason=str(refusal)), reply_to=message)

    def _answer(self, message: Message, context: Context) -> tuple[RecordDict, int]:
        policy = self.policy or named_policy(context) or DEFAULT
        kind = message.metadata.message_type.split(".", 1)[0]
        self._check_app(policy)
        if kind not in policy.apps.messages:
            raise Refusal("message", f"{message.metadata.message_type[:80]!r} is not answered")
        trusted = self.app.bundle in policy.apps.trusted
        own = RecordDict({n: r for n, r in context.state.items() if n.startswith(PREFIX)})
        limit = policy.max_bytes + content_bytes(message.content)
        if trusted:
            content = self._content(policy, message, context, limit, own, hide=False)
            return content, content_bytes(content)
        check_plan(policy, self._plan(policy, context))
        books, account, run, round = self._open(policy, message, context, own, kind)
        reply = self._content(policy, message, context, limit, own, hide=True)
        content = rebuild_reply(policy, message.content, reply, trains=kind == "train")
        if kind == "train":
            content = self._defend(policy, message, context, content, own, round)
        size = content_bytes(content)
        if size > policy.max_bytes:
            raise Refusal("bytes", f"expected at most {policy.max_bytes} bytes, got {size}")
        since = account.serial
        account.answer(policy, run, round, message.metadata.message_id, [])
        books.save(account, since)
        for name, record in own.items():
            context.state[name] = record
        return content, size

    def _check_app(self, policy: Policy) -> None:
        rules = policy.apps.allowed
        pairs = [
            ((rule.id, self.app.id), (rule.version, self.app.version), (rule.bundle, self.app.bundle))
            for rule in rules
        ]
        if rules and not any(all(want in (None, got) for want, got in pair) for pair in pairs):
            raise Refusal("app", f"{self.app} is not allowed")

    def _plan(self, policy: Policy, context: Context) -> RunPlan:
        clients = context.node_config.get("num-partitions", 1)
        return RunPlan(
            model="",
            model_hash="",
            parts=tuple(Part(one.name, dict(one.settings)) for one in policy.apps.apply),
            rounds=policy.apps.rounds or _ANY_ROUND,
            clients=clients if isinstance(clients, int) else 1,
        )

    def _open(
        self, policy: Policy, message: Message, context: Context, own: RecordDict, kind: str
    ) -> tuple[Books, Account, RunAccount, int]:
        """Return the account of a kind of messages, and the message's round; refuse one that was answered."""
        folder = folder_of(context)
        if policy.needs_memory and folder is None:
            raise Refusal("node", "the policy has limits over all runs, and the node has no state-dir")
        shelf = RecordDict()
        if f"{PREFIX}{kind}" in own:
            shelf["account"] = own[f"{PREFIX}{kind}"]
        books = _Kept(None if folder is None else AccountFile(_file(folder, context, kind)), shelf, own, kind)
        round = round_of(message)
        if round is None:
            raise Refusal("order", "the message names no round")
        if policy.apps.rounds is not None and round > policy.apps.rounds:
            raise Refusal("order", f"expected a round up to {policy.apps.rounds}, got {round}")
        account = books.load()
        plan = f"{self.app.bundle} {[mod.defense for mod in self._chain(policy)]}"
        run = account.open(context.run_id, None, plan)
        if account.is_repeated(policy, run, round, message.metadata.message_id):
            raise Refusal("order", f"round {round}: this message was answered")
        return books, account, run, round

    def _content(
        self,
        policy: Policy,
        message: Message,
        context: Context,
        limit: int,
        own: RecordDict,
        *,
        hide: bool,
    ) -> RecordDict:
        shown = {n: v for n, v in context.node_config.items() if not (hide and n in _OWN_KEYS)}
        state = RecordDict({n: r for n, r in context.state.items() if n not in own})
        theirs = Context(
            context.run_id, context.node_id, shown, copy_records(state), dict(context.run_config)
        )
        answer = self.call(copy_message(message), theirs, policy, limit)
        if answer.content is None:
            raise Refusal("internal", f"the app failed: {answer.detail[:400]}")
        if len(answer.content) > limit:
            raise Refusal("bytes", f"the app's reply has {len(answer.content)} bytes")
        try:
            content, kept = unpack_records(answer.content), unpack_records(answer.state)
        except ValueError as error:
            raise Refusal("unreadable", str(error)) from error
        context.state = RecordDict({n: r for n, r in kept.items() if not n.startswith(PREFIX)} | dict(own))
        return content

    def _defend(
        self,
        policy: Policy,
        message: Message,
        context: Context,
        content: RecordDict,
        own: RecordDict,
        round: int,
    ) -> RecordDict:
        memory = RecordDict({n.removeprefix(PREFIX): r for n, r in own.items()})
        node = Context(context.run_id, context.node_id, context.node_config, memory, {})
        for place, mod in enumerate(self._chain(policy)):
            content = mod.rewrite(message.content, content, node, round, place)
        own.update({f"{PREFIX}{n}": record for n, record in memory.items()})
        return content

    def _chain(self, policy: Policy) -> tuple[TransformMod, ...]:
        key = policy.model_dump_json()
        if key not in self._mods:
            self._mods[key] = mods_of(policy)
        return self._mods[key]


@dataclass(frozen=True)
class _Kept(Books):
    """Books that put the account among the node's own records."""

    own: RecordDict
    kind: str

    def save(self, account: Account, since: int) -> None:
        """Save the account."""
        super().save(account, since)
        record = self.records.get("account")
        if isinstance(record, ConfigRecord):
            self.own[f"{PREFIX}{self.kind}"] = record


def mods_of(policy: Policy) -> tuple[TransformMod, ...]:
    """Return the mods that a policy applies; raise a `Refusal` for one that does not exist."""
    for one in policy.apps.apply:
        if own := sorted(one.settings.keys() & ModOptions.__annotations__.keys()):
            raise Refusal("node", f"apps.apply: {one.name}: {own} are no settings of a node's mod")
    options: ModOptions = {"returns": policy.apps.returns}
    if not policy.buffers:
        options["send_buffers"] = False
    try:
        applied = [mod_named(one.name, **one.settings, **options) for one in policy.apps.apply]
    except ValueError as error:
        raise Refusal("node", str(error)) from error
    # without any, buffers are withheld and numbers checked all the same
    return tuple(applied) or (none_mod(**options),)


def guard_app(
    app: Callable[[Message, Context], Message],
    policy: Policy | None = None,
    identity: AppIdentity = AppIdentity(),  # noqa: B008 (immutable)
) -> Enforcer:
    """Put a policy around a ClientApp in this process, for simulations.

    The app's reply is serialised before it is read, so that no object of the app's is trusted. But the app
    shares the process with the check and can change it: ``fl-app-supernode`` runs it in a process of its own.
    """

    def call(message: Message, context: Context, policy: Policy, limit: int) -> AppReply:
        try:
            reply = app(message, context)
            if reply.has_error():
                return AppReply(None, detail=str(reply.error.reason))
            return AppReply(pack_records(reply.content), pack_records(context.state))
        except Exception as error:
            return AppReply(None, detail=f"{type(error).__name__}: {error}")

    return Enforcer(identity, call, policy)


def _file(folder: Path, context: Context, kind: str) -> Path:
    which = context.node_config.get("partition-id", 0)
    return folder / f"account-apps-{kind}-{which}.json"
