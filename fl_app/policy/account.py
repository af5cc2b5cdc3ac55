"""Account of a node's answers and privacy costs over all runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
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

_Count = Annotated[int, Field(ge=0)]
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
    round: _Count = 0
    """Last answered round."""
    order: str = ""
    """Digest of the last answered order."""
    answers: _Count = 0
    """Answers to that round."""
    located: Annotated[str, Field(pattern=r"^([0-9]{1,19}/.*)?$")] = ""
    """Round and digest of the last query for positions."""


@dataclass
class Account:
    """All answers of a node, with their privacy costs."""

    __pydantic_config__ = _EXACT

    serial: _Count = 0
    """Number of changes; lets a process detect that another one has written meanwhile."""
    answers: _Count = 0
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
        run = replace(self.runs.get(name) or RunAccount(plan))
        if run.plan != plan:
            raise Refusal("run", f"run {name} was begun with another plan")
        if number not in run.numbers:
            run.numbers = [*run.numbers, number][-MOST_NUMBERS:]
        self._take(name, run)
        return run

    def is_repeated(
        self,
        policy: Policy,
        run: RunAccount,
        round: int,
        order: str,
        same_model: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Return whether this exact order was answered before; refuse orders beyond a round's limit.

        ``same_model`` compares the models if ``order`` does not cover them.
        """
        if round > run.round:
            return False
        if round == run.round and order == run.order and same_model():
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
        delta, before = repr(release.delta), self.spent
        mine = [release.sample_rate, release.noise_multiplier]
        steps = next((entry[2] for entry in before.get(delta, []) if entry[:2] == mine), 0)
        self.spent = _joined(before, {delta: [[*mine, steps + release.steps]]})
        budget = policy.dp.epsilon
        if budget is not None and (spent := self.epsilon(policy.dp.delta)) > budget:
            self.spent = before
            raise Refusal(
                "budget", f"{budget:g} at delta {policy.dp.delta:g}; one more answer would make {spent:g}"
            )

    def _take(self, name: str, run: RunAccount) -> None:
        self.runs[name] = run
        while len(self.runs) > MOST_RUNS:
            del self.runs[next(iter(self.runs))]

    def copy(self) -> Account:
        """Return an account whose changes leave this one as it is; both share what has not changed."""
        return replace(self, runs=dict(self.runs))

    def since(self, before: Account) -> Account:
        """Return the part that changed since ``before``, of which this account is a copy, for `follow`."""
        runs = {name: run for name, run in self.runs.items() if run is not before.runs.get(name)}
        spent = {
            delta: [entry for entry in entries if entry not in before.spent.get(delta, [])]
            for delta, entries in self.spent.items()
            if entries is not before.spent.get(delta)
        }
        return replace(self, runs=runs, spent=spent)

    def follow(self, change: Account) -> None:
        """Take up a later change; raise a ValueError if it is not later."""
        if change.serial <= self.serial:
            raise ValueError(f"expected a change after number {self.serial}, got number {change.serial}")
        for name, run in change.runs.items():
            self._take(name, run)
        self.spent = _joined(self.spent, change.spent)
        self.serial, self.answers = change.serial, change.answers

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


def _joined(spent: dict[str, list[_Spent]], later: dict[str, list[_Spent]]) -> dict[str, list[_Spent]]:
    """Return releases with the later counts of steps; what has not changed is shared."""
    joined = dict(spent)
    for delta, entries in later.items():
        known = {tuple(entry[:2]): entry for entry in joined.get(delta, [])}
        known |= {tuple(entry[:2]): entry for entry in entries}
        joined[delta] = list(known.values())
    return joined


_ACCOUNT = TypeAdapter(Account)
