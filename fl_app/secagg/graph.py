"""Sparse graph of a large secure round: the neighbours of each client (Bell et al., CCS 2020).

The clients of a keyring form a random circle, and the ``degree / 2`` clients on either side of a client are
its neighbours. A client shares masks and secrets with neighbours only, so its work grows with the logarithm
of the cohort. The order of the circle follows from all public keys: nobody knows it before the last client
has drawn its keys, and every client computes it for itself.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, floor


@dataclass(frozen=True)
class Neighbourhood:
    """Degree, quorum and smallest keyring of a sparse graph."""

    degree: int
    """Neighbours of a client, half of them on either side."""
    quorum: int
    """Number among a client and its neighbours that must answer each exchange, and that recover a secret."""
    ring: int
    """Smallest keyring for which degree and quorum suffice."""

    def __post_init__(self) -> None:
        """Refuse numbers under which a group of clients could be cut off."""
        if self.degree < 2 or self.degree % 2:
            raise ValueError(f"Neighbourhood: degree must be even and at least 2, got {self.degree}")
        # with so many alive, some are alive on both sides: the circle stays connected
        fewest = self.degree // 2 + 2
        if not fewest <= self.quorum <= self.degree + 1:
            raise ValueError(
                f"Neighbourhood: the quorum of {self.degree} neighbours must be in "
                f"[{fewest}, {self.degree + 1}], got {self.quorum}"
            )
        if self.ring < self.degree + 2:
            raise ValueError(
                f"Neighbourhood: ring must be at least {self.degree + 2} clients, got {self.ring}: "
                "fewer have the complete graph"
            )

    @property
    def surplus(self) -> int:
        """Fewest neighbours that are alive on each side of a client with a quorum."""
        return self.quorum - 1 - self.degree // 2


@dataclass(frozen=True)
class Assumptions:
    """Assumed shares of colluding and vanishing clients, and the accepted failure probabilities."""

    colluding: float = 0.1
    dropping: float = 0.1
    privacy_bits: int = 70
    """A graph has a client with too many colluding neighbours with probability at most 2^-bits. For an active
    server that tries 2^30 graphs before it shows one, 2^-40 remains."""
    failure_bits: int = 20
    """A round fails with probability at most 2^-bits because a client has too few neighbours left."""
    smallest: int = 200
    """Smaller cohorts use the complete graph, which withstands a third of the clients."""


USUAL = Assumptions()


@functools.lru_cache(maxsize=256)
def fit_neighbourhood(clients: int, assumed: Assumptions = USUAL) -> Neighbourhood | None:
    """Return the fewest neighbours that suffice for a cohort; None: the complete graph.

    A client's ``degree / 2`` neighbours on one side are a random set of the others, so the number of
    colluding ones follows the hypergeometric distribution. If no side of any client has
    ``surplus`` of them, every honest survivor has an honest survivor on either side. Their masks then connect
    all honest survivors, and no client has enough colluding neighbours to reveal both its secrets.
    """
    if clients < assumed.smallest:
        return None
    lost, colluding = floor(assumed.dropping * clients), floor(assumed.colluding * clients)
    others, accepted = clients - lost - 1, 0.5 / clients * 2.0**-assumed.privacy_bits
    for half in range(1, others // 2):
        surplus = _fewest_surplus(others, colluding, half, accepted)
        # not counting a client that is gone itself, a quorum of half + 1 + surplus can lose this many
        spare = half - surplus - 1
        if spare < 0:
            continue
        failing = _tail(others, lost, 2 * half, spare + 1)
        if failing * clients <= 2.0**-assumed.failure_bits:
            return Neighbourhood(2 * half, half + 1 + surplus, clients - lost)
    return None


@functools.lru_cache(maxsize=256)
def is_private(neighbourhood: Neighbourhood | None, clients: int, assumed: Assumptions = USUAL) -> bool:
    """Return whether the graph of a cohort protects its clients under the assumptions."""
    if neighbourhood is None:
        return True
    colluding = floor(assumed.colluding * clients)
    if clients < assumed.smallest or colluding >= neighbourhood.ring:
        return False
    chance = _tail(neighbourhood.ring - 1, colluding, neighbourhood.degree // 2, neighbourhood.surplus)
    return 2 * clients * chance <= 2.0**-assumed.privacy_bits


def most_colluding(clients: int, neighbourhood: Neighbourhood | None) -> int:
    """Return the most clients that may lie or collude with the server while the others stay protected."""
    return (clients - 1) // 3 if neighbourhood is None else floor(USUAL.colluding * clients)


class Graph:
    """The circles of a keyring: each client with its neighbours."""

    def __init__(self, ring: Sequence[int], seed: bytes, neighbourhood: Neighbourhood | None) -> None:
        self.ring = tuple(ring)
        self._reach = None if neighbourhood is None else neighbourhood.degree // 2
        if self._reach is not None:
            self._order = sorted(self.ring, key=lambda client: _place(seed, client))
            self._places = {client: place for place, client in enumerate(self._order)}

    def circle(self, client: int) -> tuple[int, ...]:
        """Return a client and its neighbours, ascending."""
        if self._reach is None or 2 * self._reach + 1 >= len(self.ring):
            return self.ring
        middle, count = self._places[client], len(self.ring)
        steps = range(middle - self._reach, middle + self._reach + 1)
        return tuple(sorted(self._order[step % count] for step in steps))


def _place(seed: bytes, client: int) -> bytes:
    return hashlib.sha256(b"fl-app secagg 1 place" + seed + struct.pack("<I", client)).digest()


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Return the probability that ``drawn`` of a population include at least ``least`` marked ones."""
    most = min(drawn, marked)
    ways = sum(comb(marked, i) * comb(population - marked, drawn - i) for i in range(least, most + 1))
    return ways / comb(population, drawn)


def _fewest_surplus(population: int, marked: int, drawn: int, accepted: float) -> int:
    """Return the smallest count that the marked ones reach with at most the accepted probability."""
    total, ways, surplus = comb(population, drawn), 0, drawn + 1
    while surplus > 1:
        ways += comb(marked, surplus - 1) * comb(population - marked, drawn - surplus + 1)
        if ways / total > accepted:
            break
        surplus -= 1
    return surplus
