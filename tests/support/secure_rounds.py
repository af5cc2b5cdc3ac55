"""Whole secure rounds for tests: real clients and a real server, and who stops answering when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fl_app.secagg import (
    Identity,
    SecureRound,
    SecureSum,
    Terms,
    endorse,
    fit_fixed_point,
    mask,
    offer,
    share,
    smallest_threshold,
    unmask,
)

RUN = bytes(range(16))
JOB = bytes(range(32))
UNSIGNED = ("offer", "share", "mask", "unmask")
SIGNED = ("offer", "share", "mask", "endorse", "unmask")

Vectors = Mapping[int, np.ndarray]
Replies = dict[int, bytes]


def make_terms(clients=4, *, size=3, bound=2.0, step=0.25, threshold=None, signed=False, **more) -> Terms:
    participants = tuple(range(clients)) if isinstance(clients, int) else tuple(clients)
    return Terms(
        run=more.get("run", RUN),
        round=more.get("round", 1),
        attempt=more.get("attempt", 0),
        job=more.get("job", JOB),
        participants=participants,
        threshold=threshold or smallest_threshold(len(participants)),
        size=size,
        fixed_point=more.get("fixed_point")
        or fit_fixed_point(bound=bound, step=step, clients=len(participants)),
        signed=signed,
    )


@dataclass
class Cohort:
    """The clients of a test: their states, and how each answers an exchange."""

    vectors: Vectors
    identities: Mapping[int, Identity] = field(default_factory=dict)
    states: dict[int, bytes] = field(default_factory=dict)

    def answer(self, call: str, messages: Mapping[int, bytes], gone: set[int] | None = None) -> Replies:
        """Let all but those who are gone answer, and keep their states."""
        replies = {}
        for client, message in messages.items():
            if client not in (gone or set()):
                step = self._calls[call](client, message)
                self.states[client] = step.state
                replies[client] = step.reply
        return replies

    @property
    def _calls(self) -> dict[str, Callable]:
        who, state = self.identities.get, self.states
        return {
            "offer": lambda i, m: offer(m, client=i, previous=state.get(i), identity=who(i)),
            "share": lambda i, m: share(state[i], m, identity=who(i)),
            "mask": lambda i, m: mask(state[i], m, self.vectors[i], job=JOB),
            "endorse": lambda i, m: endorse(state[i], m, identity=self.identities[i]),
            "unmask": lambda i, m: unmask(state[i], m, identity=who(i)),
        }


def collectors(server: SecureRound) -> dict[str, Callable]:
    return {
        "offer": server.collect_adverts,
        "share": server.collect_shares,
        "mask": server.collect_masked,
        "endorse": server.collect_endorsements,
        "unmask": server.collect_unmasking,
    }


def play(
    terms: Terms,
    cohort: Cohort,
    *,
    drops: Mapping[int, str] | None = None,
    until: str | None = None,
    server: SecureRound | None = None,
) -> SecureSum | Replies:
    """Play a round; a client of ``drops`` does not answer the exchange named there, nor any later one.

    With ``until``, return the messages that are to be answered by that call.
    """
    server = server or SecureRound(terms)
    gone: set[int] = set()
    messages = server.invite()
    for call in SIGNED if terms.signed else UNSIGNED:
        if call == until:
            return messages
        gone |= {client for client, when in (drops or {}).items() if when == call}
        messages = collectors(server)[call](cohort.answer(call, messages, gone))
    return messages


def plain_sum(terms: Terms, vectors: Vectors, survivors) -> list[int]:
    """The oracle: Python's whole numbers, one value at a time."""
    grid = terms.fixed_point
    most = round(grid.bound / grid.step)
    columns = zip(*(vectors[client].tolist() for client in survivors), strict=True)
    return [
        sum(min(max(round(value / grid.step), -most), most) for value in column) % 2**grid.bits
        for column in columns
    ]
