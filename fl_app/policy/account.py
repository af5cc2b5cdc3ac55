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
"""Runs that are remembered; the oldest are forgotten first."""
MOST_NUMBERS = 64
"""Flower's numbers of one run: a resumed run has another one."""
_SELF = 0
_EXACT = ConfigDict(strict=True, extra="forbid")

_Spent = Annotated[
    list[Annotated[float, Field(ge=0, allow_inf_nan=False)]], Field(min_length=3, max_length=3)
]


@dataclass
class RunAccount:
    """The answers to one run."""

    __pydantic_config__ = _EXACT

    plan: str
    """The digest of the run as it was built."""
    numbers: list[int] = field(default_factory=list)
    """Flower's numbers of it."""
    round: int = 0
    """The last round that was answered."""
    order: str = ""
    """The digest of the order that was answered then."""
    answers: int = 0
    """Answers to that round."""
    located: Annotated[str, Field(pattern=r"^([0-9]{1,19}/.*)?$")] = ""
    """The digest of the last query for positions."""


@dataclass
class Account:
    """All that a node has answered."""

    __pydantic_config__ = _EXACT

    serial: int = 0
    """Counts the changes, so that a process that slept notices that another one went on."""
    answers: int = 0
    runs: dict[str, RunAccount] = field(default_factory=dict)
    spent: dict[str, list[_Spent]] = field(default_factory=dict)
    """Sampling rate, noise multiplier and steps of releases, by delta."""

    def open(self, number: int, key: str | None, plan: str) -> RunAccount:
        """Return the account of a run, which Flower calls ``number`` and which calls itself ``key``.

        A run keeps the name that it gave first, and a name the plan that it was first used with: under
        another name answered rounds would be forgotten, under another plan one defense would send what
        another one held back.
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
        """Say whether this very order was answered; one too many of an answered round is refused."""
        if round > run.round:
            return False
        if round == run.round and order == run.order:
            return True
        if round == run.round and run.answers < policy.orders.per_round:
            return False
        raise Refusal("order", f"expected an order after round {run.round}, got another one of round {round}")

    def locate(self, run: RunAccount, round: int, query: str) -> None:
        """Note a query for positions: one a round, before its answer."""
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
        """Note an answer before it leaves, and what it costs; one beyond the limits is refused."""
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
        """Return what was spent at ``delta``, whatever delta the runs themselves had."""
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
        """Return a text from which `from_json` makes the same account."""
        return _ACCOUNT.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Account:
        """Return the account in a text; anything else is a ValueError."""
        try:
            return _ACCOUNT.validate_json(text)
        except ValidationError as error:
            raise ValueError(f"is no account: {error.errors()[0]['msg']}") from error


_ACCOUNT = TypeAdapter(Account)


@dataclass(frozen=True)
class AccountFile:
    """The file of an account. A damaged one is an error: an empty account would forget what was spent."""

    path: Path

    def load(self) -> Account:
        """Return what is there; a new account if there is nothing yet."""
        try:
            return Account.from_json(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Account()
        except (ValueError, OSError) as error:
            raise Refusal("node", f"{self.path}: {error}") from error

    def save(self, account: Account, since: int) -> None:
        """Write ``account``, loaded at the serial ``since``; an OSError means that no answer may leave."""
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
