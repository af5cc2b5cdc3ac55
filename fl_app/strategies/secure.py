"""Secure aggregation as a part of a strategy: its exchanges before and after the training order."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_app.secagg import (
    FixedPoint,
    QuorumError,
    RoundFailed,
    SecureRound,
    SecureSum,
    Terms,
    check_quorum,
    fit_fixed_point,
    fit_neighbourhood,
    load_pinned,
    most_colluding,
    smallest_threshold,
)
from fl_app.secagg.messages import Masked
from fl_app.wire.messages import ENDORSE, OFFER, SHARE, UNMASK

logger = logging.getLogger(__name__)

Ask = Callable[[str, Mapping[int, bytes]], dict[int, bytes]]
"""Sends each client its message of a kind, and returns the answers that came."""
Range = Callable[[int], tuple[float, float]]
"""Gives the range that one client of a cohort of a size needs, and the step."""


class SecureAggregation:
    """Gives a strategy whose clients send vectors the sum of them, and no single one.

    `begin` comes before the training orders and `finish` after them. Clients that vanish or break the
    rules are left out as long as enough others are there. If too few answer before anything was
    trained, the round is tried again with those who did.
    """

    def __init__(
        self,
        *,
        min_clients: int = 3,
        identities: str | Path | None = None,
        bound: float = 8.0,
        step: float = 2.0**-20,
        attempts: int = 2,
    ) -> None:
        if min_clients < 2:
            raise ValueError(f"SecureAggregation: min_clients must be at least 2, got {min_clients}")
        if attempts < 1:
            raise ValueError(f"SecureAggregation: attempts must be at least 1, got {attempts}")
        self.min_clients = min_clients
        self.pinned = None if identities is None else load_pinned(Path(identities))
        self._plain = FixedPoint(bound, step, 64)
        self._attempts = attempts
        self.run = os.urandom(16)
        """Tells this run's terms from others'."""
        self._round: SecureRound | None = None
        self._refused_before: dict[int, str] = {}
        self._complaints: dict[int, set[int]] = {}
        """By client: with whom it had an envelope that did not open, as its owner or its holder."""
        self.excluded: set[int] = set()
        """Clients that spoiled a round beyond doubt: the rest of the run goes on without them."""

    @property
    def terms(self) -> Terms:
        """The terms of the round that has begun."""
        return self._begun.terms

    @property
    def refused(self) -> dict[int, str]:
        """Clients whose messages were refused in this round, in any attempt, and why."""
        return self._refused_before | ({} if self._round is None else self._round.refused)

    def begin(
        self,
        ask: Ask,
        clients: list[int],
        *,
        round: int,
        restarts: int = 0,
        job: bytes,
        size: int,
        grid: Range | None,
    ) -> dict[int, bytes]:
        """Agree on keys and shares; return what each client's training order has to deliver.

        ``restarts`` says how often the whole round was begun before and cut short: clients take no
        attempt for new that they have seen. ``grid`` overrides the fixed-point range
        and step, by the size of the cohort.
        """
        self._round, self._refused_before = None, {}
        clients = [client for client in clients if client not in self.excluded]
        first = restarts * self._attempts
        for attempt in range(first, first + self._attempts):
            what = f"secure aggregation, round {round} attempt {attempt}"
            check_quorum(clients, needed=self.min_clients, what=what)
            try:
                return self._agree(ask, self._terms(clients, round, attempt, job, size, grid))
            except QuorumError as error:
                if attempt + 1 == first + self._attempts:
                    raise
                logger.warning("%s; trying again with those", error)
                clients, self._refused_before = list(error.present), self.refused
        raise AssertionError("unreachable: the last attempt returns or raises")

    def finish(self, ask: Ask, masked: Mapping[int, bytes]) -> SecureSum:
        """Return the sum of the vectors that came."""
        secure = self._begun
        messages = secure.collect_masked(masked)
        if secure.terms.signed:
            messages = secure.collect_endorsements(ask(ENDORSE, messages))
        try:
            return secure.collect_unmasking(ask(UNMASK, messages))
        finally:
            self.excluded |= secure.proven
            self._hear(secure)

    def _hear(self, secure: SecureRound) -> None:
        """Exclude who has had more envelopes that did not open than there may be liars.

        One of holder and owner lies, and nobody can tell which. A client that has trouble with more others
        than may be liars has trouble with an honest one, so it lies itself.
        """
        for holder, owner in secure.complaints:
            self._complaints.setdefault(holder, set()).add(owner)
            self._complaints.setdefault(owner, set()).add(holder)
        terms = secure.terms
        liars = max(1, most_colluding(len(terms.participants), terms.neighbourhood))
        self.excluded |= {client for client, others in self._complaints.items() if len(others) > liars}

    def see(self, blob: bytes, client: int) -> NDArray[np.float64]:
        """Return what the server sees of one client's vector, as numbers."""
        grid = self.terms.fixed_point
        return grid.decode(grid.unpack(Masked.from_bytes(blob, self.terms, client=client).packed))

    @property
    def _begun(self) -> SecureRound:
        if self._round is None:
            raise RoundFailed("secure aggregation: no round has begun")
        return self._round

    def _agree(self, ask: Ask, terms: Terms) -> dict[int, bytes]:
        self._round = SecureRound(terms, pinned=self.pinned)
        adverts = ask(OFFER, self._round.invite())
        shares = ask(SHARE, self._round.collect_adverts(adverts))
        return self._round.collect_shares(shares)

    def _terms(
        self,
        clients: list[int],
        round: int,
        attempt: int,
        job: bytes,
        size: int,
        grid: Range | None,
    ) -> Terms:
        count = len(clients)
        bound, step = (self._plain.bound, self._plain.step) if grid is None else grid(count)
        return Terms(
            run=self.run,
            round=round,
            attempt=attempt,
            job=job,
            participants=tuple(clients),
            threshold=smallest_threshold(count),
            size=size,
            fixed_point=fit_fixed_point(bound=bound, step=step, clients=count),
            signed=self.pinned is not None,
            neighbourhood=fit_neighbourhood(count),
        )
