"""Search for the clients whose masked vectors spoil the sums of secure rounds.

Masks hide who sent what, so a sum beyond its bound accuses all of its clients. The search builds a base of
clients whose sum was good, and tries groups of the others on top of it, in random order: a good sum takes
the group into the base, a bad one halves the group.

A single client that spoils the sum may be framed by a liar in the base, which was silent until it was
trusted. So it is tried with either half of the base. A single liar is in one half only: a good sum with the
other one clears the client and leads to the liar's half. A client that spoils both is accused after the base
has had another good sum without it. It then sits out some rounds, and the second time it is excluded.

A liar that lies only in sums with a certain other client cannot be told from that client: one of the two is
accused. Two liars, one in each half, can frame a client, and so can one if the base is too small to be
halved. No search can do better without a proof by each client that its vector keeps the bound.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

SITS_OUT = 8
"""Rounds that a client sits out after the first time that it is accused."""
MOST_STRIKES = 2
"""Accusations after which a client is excluded for the rest of the run."""


class Suspects:
    """Clients that may spoil sums, and those that sit out."""

    def __init__(self) -> None:
        self._base: set[int] = set()
        """Clients of a good sum since the search began."""
        self._groups: list[list[int]] = []
        """Clients to try on top of the base; empty: there is no search."""
        self._doubted: int | None = None
        """Client that is accused if it spoils both halves of the base, and a sum without it is good."""
        self._halves: list[list[int]] = []
        """Halves of the base that the doubted client is still to be tried with."""
        self._tried: list[int] = []
        self._least = 1
        self._strikes: dict[int, int] = {}
        self._back: dict[int, int] = {}
        """Round from which each accused client takes part again."""

    def held_back(self, clients: Sequence[int], *, round: int, least: int) -> list[int]:
        """Return the clients that a round goes without; at least ``least`` of ``clients`` stay in it."""
        self._least = least
        awake = [client for client in clients if round >= self._back.get(client, 0)]
        if not self._groups and self._doubted is None:
            return self._others(clients, awake, least)
        if self._halves and self._doubted in awake:
            half = [client for client in awake if client in self._halves[0] or client == self._doubted]
            return self._others(clients, half, least)
        known = {client for group in self._groups for client in group} | {*self._strikes, self._doubted}
        here = [client for client in awake if client in self._base or client not in known]
        self._tried = []
        for group in self._groups if self._doubted is None else []:
            added = [client for client in group if client in awake]
            if added and (not self._tried or len(here) < least):
                self._tried += added
                here += added
        return self._others(clients, here, least)

    def spoiled(self, clients: Collection[int]) -> None:
        """Note a bad sum of ``clients``."""
        tried = [client for client in self._tried if client in clients]
        trusted = self._base & set(clients)
        if self._halves and set(clients) <= {self._doubted, *self._halves[0]}:
            self._halves.pop(0)
        elif self._doubted is not None or not (self._groups and tried):
            self._begin([*clients, *self._rest(clients)])
        elif len(tried) == 1 and trusted:
            self._doubted = tried[0]
            self._halves = self._split(trusted) if len(trusted) >= 2 * (self._least - 1) else []
            self._groups = [self._rest(tried)] if self._rest(tried) else []
        elif trusted or len(tried) >= 2 * self._least:
            middle = (len(tried) + 1) // 2
            rest = self._rest(tried)
            self._groups = [group for group in (tried[:middle], tried[middle:], rest) if group]
        else:  # too few to halve, and none of them is known to be good
            self._begin([*tried, *self._rest(tried)])

    def cleared(self, clients: Collection[int], *, round: int) -> set[int]:
        """Note a good sum of ``clients``; return those that are excluded for good by now."""
        if self._doubted in clients:  # what it seemed to spoil was spoiled by one of the others
            others = [client for client in self._base if client not in clients]
            self._groups = [group for group in (others, *self._groups) if group]
            self._base, self._doubted, self._halves = set(clients), None, []
        elif self._doubted is not None and not self._halves:
            accused, self._doubted = self._doubted, None
            self._strikes[accused] = self._strikes.get(accused, 0) + 1
            self._back[accused] = round + 1 + SITS_OUT
        rest = self._rest(clients)
        if self._groups:
            self._base |= set(clients)
            kept = [[client for client in group if client not in clients] for group in self._groups]
            self._groups = [group for group in kept if group]
        if not rest:
            self._groups, self._base = [], set()
        return {client for client, strikes in self._strikes.items() if strikes >= MOST_STRIKES}

    def _begin(self, clients: Sequence[int]) -> None:
        """Begin a search among ``clients``, in halves of a random order."""
        self._base, self._doubted, self._halves, self._groups = set(), None, [], self._split(clients)

    @staticmethod
    def _split(clients: Collection[int]) -> list[list[int]]:
        order = sorted(set(clients))
        random.SystemRandom().shuffle(order)  # else a liar could choose whom the halves accuse
        middle = (len(order) + 1) // 2
        return [order[:middle], order[middle:]]

    def _rest(self, tried: Collection[int]) -> list[int]:
        """Return the clients that are still to be tried, but for these."""
        return [client for group in self._groups for client in group if client not in tried]

    @staticmethod
    def _others(clients: Sequence[int], here: Collection[int], least: int) -> list[int]:
        """Return the clients that are not ``here``, but for as many as ``least`` demands."""
        others = [client for client in clients if client not in here]
        return others[: max(0, len(clients) - least)]
