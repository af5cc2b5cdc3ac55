"""Secure aggregation within a strategy: its exchanges before and after the training order."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from flwr.serverapp.strategy import Strategy
from numpy.typing import NDArray

from fl_app.mods.secure_job import Summed
from fl_app.secagg import (
    FixedPoint,
    QuorumError,
    RoundFailed,
    SecureRound,
    SecureSum,
    SpoiledSum,
    Terms,
    check_quorum,
    fit_fixed_point,
    fit_neighbourhood,
    load_pinned,
    most_colluding,
    smallest_threshold,
)
from fl_app.secagg.messages import Masked
from fl_app.strategies.secure_mean import SecureMean
from fl_app.strategies.suspects import Suspects
from fl_app.wire.messages import ENDORSE, OFFER, SHARE, UNMASK

logger = logging.getLogger(__name__)

HELD_BACK = "sits out: an earlier sum with its vector was beyond what its clients may send"

Ask = Callable[[str, Mapping[int, bytes]], dict[int, bytes]]
"""Sends each client its message of a kind, and returns the answers received."""
Range = Callable[[int], tuple[float, float]]
"""Returns the range that one client needs and the step, from the size of the cohort."""


class SecureAggregation:
    """Secure sum for a strategy whose clients send vectors; it never sees a single vector.

    `begin` runs before the training orders and `finish` after them. Clients that vanish or break the
    rules are left out as long as enough others remain. If too few answer before training, the round
    is tried again with those that answered.
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
        """Random id that separates this run's terms from those of others."""
        self._round: SecureRound | None = None
        self._refused_before: dict[int, str] = {}
        self._complaints: dict[int, set[int]] = {}
        """By client: peers with which it shared an unopened envelope, as owner or as holder."""
        self._suspects = Suspects()
        self.excluded: set[int] = set()
        """Clients that have spoiled rounds; the rest of the run goes on without them."""

    def wrap(
        self,
        strategy: Strategy,
        *,
        max_weight: float,
        weight: str = "num-examples",
        metrics: Sequence[str] = (),
        returns: Literal["weights", "delta"] = "weights",
        timeout: float = 600.0,
        takes_mean: bool = False,
    ) -> SecureMean:
        """Return ``strategy``, a strategy of Flower, that gets the mean of its clients' replies alone.

        Clients have `fl_app.mods.secure_mod` with the same ``max_weight``, ``weight``, ``metrics`` and
        ``returns``. ``metrics`` are averaged under the masks, too; no other number of training arrives.
        ``timeout`` is that of each exchange beside training, in seconds. A strategy that reads single
        updates is refused; ``takes_mean`` says of one's own that it does not.
        """
        if self.pinned is not None:
            raise ValueError(
                "SecureAggregation: identities are pinned to partition ids, which a strategy of Flower does "
                "not ask for: wrap one without identities"
            )
        summed = Summed(weight, float(max_weight), tuple(metrics), returns)
        return SecureMean(strategy, self, summed, timeout=timeout, takes_mean=takes_mean)

    @property
    def terms(self) -> Terms:
        """Terms of the current round."""
        return self._begun.terms

    @property
    def refused(self) -> dict[int, str]:
        """Clients whose messages were refused in any attempt of this round, with reasons."""
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
        """Agree on keys and shares; return the message that each client's training order must deliver.

        ``restarts`` is the number of earlier, interrupted starts of the round: clients refuse an
        attempt number that they have seen. ``grid`` overrides the fixed-point range
        and step, by the size of the cohort.
        """
        clients = [client for client in clients if client not in self.excluded]
        held = self._suspects.held_back(clients, round=round, least=self.min_clients)
        clients = [client for client in clients if client not in held]
        self._round, self._refused_before = None, dict.fromkeys(held, HELD_BACK)
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
        """Return the sum of the received vectors."""
        secure = self._begun
        messages = secure.collect_masked(masked)
        if secure.terms.signed:
            messages = secure.collect_endorsements(ask(ENDORSE, messages))
        try:
            summed = secure.collect_unmasking(ask(UNMASK, messages))
        except SpoiledSum as error:
            self._suspects.spoiled(error.clients)
            raise
        finally:
            self.excluded |= secure.proven
            self._hear(secure)
        self.excluded |= self._suspects.cleared(summed.survivors, round=secure.terms.round)
        return summed

    def _hear(self, secure: SecureRound) -> None:
        """Exclude clients with complaints involving more peers than there may be liars.

        Either the holder or the owner lies, and nobody can tell which. A client in conflict with more peers
        than there may be liars is in conflict with an honest one, so it lies itself.
        """
        for holder, owner in secure.complaints:
            self._complaints.setdefault(holder, set()).add(owner)
            self._complaints.setdefault(owner, set()).add(holder)
        terms = secure.terms
        liars = max(1, most_colluding(len(terms.participants), terms.neighbourhood))
        self.excluded |= {client for client, others in self._complaints.items() if len(others) > liars}

    def see(self, blob: bytes, client: int) -> NDArray[np.float64]:
        """Return the server's view of one client's vector, as numbers."""
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
