"""Account of a node's answers and privacy costs over all runs, in a file that survives the process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fl_app.policy.policy import Policy
from fl_app.policy.refusal import Refusal
from fl_app.privacy import Ledger, Release

MOST_RUNS = 4096
"""Maximum number of remembered runs; the oldest are forgotten first."""
MOST_NUMBERS = 64
"""Maximum number of Flower run numbers per run; each resume adds one."""
_SELF = 0
_EXACT = ConfigDict(strict=True, extra="forbid")

_Spent = Annotated[
    list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=3, max_length=3)
]


@dataclass
class RunAccount:
    """Answers given to one run."""

    __pydantic_config__ = _EXACT

    plan: str
    """Digest of the run as built."""
    numbers: list[int] = field(default_factory=list)
    """Flower's numbers for the run."""
    round: int = 0
    """Last answered round."""
    order: str = ""
    """Digest of the last answered order."""
    answers: int = 0
    """Answers to that round."""
    located: Annotated[str, Field(pattern=r"^([0-9]{1,19}/.*)?$")] = ""
    """Round and digest of the last query for positions."""


@dataclass
class Account:
    """All answers of a node, with their privacy costs."""

    __pydantic_config__ = _EXACT

    serial: int = 0
    """Number of changes; lets a process detect that another one has written meanwhile."""
    answers: int = 0
    runs: dict[str, RunAccount] = field(default_factory=dict)
    spent: dict[str, list[_Spent]] = field(default_factory=dict)
    """Sampling rate, noise multiplier and steps of releases, by delta."""

    def open(self, number: int, key: str | None, plan: str) -> RunAccount:
        """Return the account of the run with Flower's number ``number`` and its own name ``key``.

        A run must keep its first name: under a new one, the node would forget which rounds it answered.
        A name must keep its first plan: under a new one, a different defense could send what the first
        withheld.
        """
        name = key or f"run-{number}"
        known = next((other for other, run in self.runs.items() if number in run.numbers), name)
        if known != name:
            raise Refusal("run", f"run {number} was {known}, and now calls itself {name}")
        run = self.runs.setdefault(name, RunAccount(plan))
        if run.plan != plan:
            raise Refusal("run", f"run {name} was begun with another plan")
        if number not in run.numbers:
            run.numbers = [*run.numbers, number][-MOST_NUMBERS:]
        while len(self.runs) > MOST_RUNS:
            del self.runs[next(iter(self.runs))]
        return run

    def is_repeated(self, policy: Policy, run: RunAccount, round: int, order: str) -> bool:
        """Return whether this exact order was answered before; refuse orders beyond a round's limit."""
        if round > run.round:
            return False
        if round == run.round and order == run.order:
            return True
        if round == run.round and run.answers < policy.orders.per_round:
            return False
        raise Refusal("order", f"expected an order after round {run.round}, got another one of round {round}")

    def locate(self, run: RunAccount, round: int, query: str) -> None:
        """Record a query for positions: one per round, before the round's answer."""
        if round <= run.round:
            raise Refusal("order", f"expected a query after round {run.round}, got one of round {round}")
        started, _, last = run.located.partition("/")
        if started and (round < int(started) or (round == int(started) and last != query)):
            raise Refusal("order", f"round {round} was asked for other positions before")
        run.located = f"{round}/{query}"
        self.serial += 1

    def answer(
        self, policy: Policy, run: RunAccount, round: int, order: str, releases: Iterable[Release]
    ) -> None:
        """Record an answer and its privacy cost before it leaves; refuse one beyond the limits."""
        total = policy.orders.total
        if total is not None and self.answers >= total:
            raise Refusal("orders", f"{self.answers} of {total} answers were given")
        for release in releases:
            self._charge(policy, release)
        run.answers = run.answers + 1 if round == run.round else 1
        run.round, run.order = round, order
        self.answers += 1
        self.serial += 1

    def epsilon(self, delta: float) -> float:
        """Return the epsilon spent at ``delta``, regardless of the deltas of the runs."""
        ledger = Ledger()
        for releases in self.spent.values():
            for rate, sigma, steps in releases:
                ledger.charge(_SELF, Release(rate, sigma, int(steps), delta))
        return ledger.epsilon() or 0.0

    def _charge(self, policy: Policy, release: Release) -> None:
        entries = self.spent.setdefault(repr(release.delta), [])
        mine = [release.sample_rate, release.noise_multiplier]
        entry = next((entry for entry in entries if entry[:2] == mine), None)
        if entry is None:
            entry = [*mine, 0]
            entries.append(entry)
        entry[2] += release.steps
        budget = policy.dp.epsilon
        if budget is not None and (spent := self.epsilon(policy.dp.delta)) > budget:
            entry[2] -= release.steps
            raise Refusal(
                "budget", f"{budget:g} at delta {policy.dp.delta:g}; one more answer would make {spent:g}"
            )

    def to_json(self) -> str:
        """Return the account as JSON, for `from_json`."""
        return _ACCOUNT.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Account:
        """Parse an account; raise ValueError if the text is not one."""
        try:
            return _ACCOUNT.validate_json(text)
        except ValidationError as error:
            raise ValueError(f"is no account: {error.errors()[0]['msg']}") from error


_ACCOUNT = TypeAdapter(Account)


@dataclass(frozen=True)
class AccountFile:
    """File of an account. A damaged file is an error: starting afresh would forget the spent budget."""

    path: Path

    def load(self) -> Account:
        """Return the stored account, or a new one if there is no file yet."""
        try:
            return Account.from_json(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Account()
        except (ValueError, OSError) as error:
            raise Refusal("node", f"{self.path}: {error}") from error

    def save(self, account: Account, since: int) -> None:
        """Write ``account``, loaded at serial ``since``; on OSError, no answer may leave."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self._alone():
            if self.load().serial != since:
                raise OSError("another process has answered for this client in the meantime")
            beside = self.path.with_suffix(".new")
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(account.to_json())
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)
