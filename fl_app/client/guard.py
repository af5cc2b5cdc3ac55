"""Enforcement of a client's policy: it checks and logs orders and answers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from flwr.app import ConfigRecord, RecordDict

from fl_app.client.movement import LastMove
from fl_app.policy import (
    Account,
    AccountFile,
    Ask,
    AuditAsk,
    Leaving,
    Policy,
    Refusal,
    RunAccount,
    RunPlan,
    check_ask,
    check_cohort,
    check_leaving,
    check_noise,
    check_plan,
    check_work,
)
from fl_app.privacy import Release
from fl_app.privacy.draws import OwnDraws
from fl_app.storage.fingerprint import hash_tensors
from fl_app.types import Update
from fl_app.wire.messages import LocationQuery, Parcel, Reply

_RECORD, _JSON = "account", "json"
PAUSE = 50
"""Rounds without an order after which a model may have moved twice as far; four times at most."""


@dataclass(frozen=True)
class Books:
    """Store of a client's account: its own folder, else Flower's memory of the run."""

    file: AccountFile | None
    records: RecordDict = field(repr=False)

    def load(self) -> Account:
        """Return the account."""
        if self.file is not None:
            return self.file.load()
        record = self.records.get(_RECORD)
        text = record.get(_JSON) if isinstance(record, ConfigRecord) else None
        return Account.from_json(text) if isinstance(text, str) else Account()

    def save(self, account: Account, since: int) -> None:
        """Save the account; on an OSError the answer must not leave."""
        if self.file is not None:
            self.file.save(account, since)
        else:
            self.records[_RECORD] = ConfigRecord({_JSON: account.to_json()})


@dataclass
class Guard:
    """Policy of a node that does not trust its runs, applied to one order."""

    policy: Policy
    plan: RunPlan
    books: Books
    number: int
    """Flower's number of the run."""
    bundle: str = ""
    last_move: LastMove = field(default_factory=LastMove)
    account: Account = field(init=False)
    run: RunAccount = field(init=False)
    since: int = field(init=False)
    size: int = field(init=False, default=0)
    """Bytes of the answer, for the log."""

    @cached_property
    def draws(self) -> OwnDraws:
        """Random numbers of this order, which no server can replay."""
        return OwnDraws()

    def accept(self, parcel: Parcel, kind: str) -> None:
        """Refuse an order that the policy forbids, even if its answer is already stored."""
        check_plan(self.policy, self.plan)
        if self.policy.needs_memory and self.books.file is None:
            raise Refusal("node", "the policy has limits over all runs, and the node has no state-dir")
        order = parcel.order
        check_ask(
            self.policy,
            self.plan,
            Ask(
                kind=kind,
                round=order.round,
                model=self.plan.model,
                model_hash=order.model_hash,
                cohort=None if parcel.plan is None else parcel.plan.cohort,
                audit=self._audit(parcel),
            ),
        )
        self.account = self.books.load()
        self.since = self.account.serial
        key = None if parcel.run is None else parcel.run.key
        self.run = self.account.open(self.number, key, self.plan.digest)

    def may_work(self, samples: int) -> None:
        """Refuse too much work; ``samples`` is the number of all samples of the client."""
        check_work(self.policy, self.plan, samples)

    def follow(self, before: Update, after: Update, round: int, samples: int) -> bool:
        """Refuse a model that moved too far since the last order; return whether the residual still fits.

        ``samples`` is the number of all samples of the client: it bounds the steps of others meanwhile.
        """
        limit = self.policy.max_movement
        if limit is None or self.plan.noise is not None or not before:
            return True
        most = limit * math.sqrt(self.plan.steps_of(samples))
        moved = self.last_move.of(before, after)
        missed = min(max(0, round - self.run.round - 1), 3 * PAUSE)
        allowed = most * (1 + missed / PAUSE)
        if not moved <= allowed:
            raise Refusal("moved", f"expected a move of at most {allowed:g}, got {moved:g}")
        return moved <= most

    def digest(self, parcel: Parcel, weights: Update) -> str:
        """Return a digest of everything in an order that determines its answer, and of ``weights``.

        A client that keeps the answered model compares it itself: only a repeated order pays for that.
        """
        order = parcel.order
        named = (order.round, order.model_hash, order.lr, parcel.plan, parcel.audit)
        # under masks, a new attempt needs a new answer
        text = repr((*named, parcel.attempt if parcel.secure else 0)) + hash_tensors(weights.values())
        blobs = hashlib.blake2b(parcel.locations + b"/" + parcel.buffers, digest_size=16).hexdigest()
        return hashlib.blake2b((text + blobs).encode(), digest_size=16).hexdigest()

    def is_repeated(self, round: int, digest: str, same_model: Callable[[], bool]) -> bool:
        """Return whether the same order was answered before; refuse another one for an answered round."""
        return self.account.is_repeated(self.policy, self.run, round, digest, same_model)

    def locate(self, round: int, digest: str, query: LocationQuery, size: int) -> None:
        """Log a query for positions before its answer leaves."""
        self.account.locate(self.run, round, f"{digest}/{query.share!r}/{query.min_size}")
        self.size = size
        self.books.save(self.account, self.since)

    def metrics(self, measured: Mapping[str, float]) -> dict[str, float]:
        """Return the numbers that may leave."""
        return {name: value for name, value in measured.items() if name in self.policy.metrics}

    def share_noise(self, cohort: int) -> None:
        """Refuse to share noise with too many or too few clients."""
        check_cohort(self.policy, self.plan, cohort)

    def leave(
        self,
        parcel: Parcel,
        digest: str,
        reply: Reply,
        *,
        samples: int,
        held: int,
        releases: Iterable[Release],
    ) -> None:
        """Check and log an answer before it leaves; ``held`` is the client's number of samples."""
        batch = self.plan.batch_of(held)
        audit = self._audit(parcel)
        if audit is None:
            samples = min(samples, self.plan.steps_of(held) * batch)
        size = len(reply.update) + len(reply.buffers)
        leaving = Leaving("update", size, batch, samples, bool(reply.buffers), audit)
        check_leaving(self.policy, self.plan, leaving)
        for release in releases:
            check_noise(self.policy, release.noise_multiplier)
        self.account.answer(self.policy, self.run, parcel.order.round, digest, releases)
        self.size = size
        self.books.save(self.account, self.since)

    def _audit(self, parcel: Parcel) -> AuditAsk | None:
        if parcel.audit is None:
            return None
        samples = max(parcel.audit.batch_size, parcel.audit.candidates)
        return AuditAsk(samples, self.number, self.bundle)
