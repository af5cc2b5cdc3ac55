"""Memory of revealed sums: two sums that differ by few clients expose the sum of those few.

A server that chooses the cohorts can ask for the sum of all clients, then for that of all but one. A client
remembers the survivor lists that it gave shares for, over all rounds and runs, and refuses the second sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fl_app.secagg.errors import ProtocolError

MOST_LISTS = 64
"""Most survivor lists remembered; the oldest is dropped first."""


@dataclass(frozen=True)
class Revealed:
    """Survivor lists, the newest last."""

    lists: tuple[tuple[int, ...], ...] = ()

    def distance(self, survivors: Sequence[int]) -> int | None:
        """Return the number of clients that differ from the closest other list; None if there is none."""
        now = frozenset(survivors)
        return min((apart for listed in self.lists if (apart := len(now ^ frozenset(listed)))), default=None)

    def check(self, client: int, survivors: Sequence[int], *, least: int) -> None:
        """Refuse a list that differs from an earlier one by at least one but fewer than ``least`` clients."""
        apart = self.distance(survivors)
        if apart is not None and apart < least:
            raise ProtocolError(
                f"client {client}: survivor list: expected an earlier one or at least {least} clients of "
                f"difference, got {apart}: the difference of the sums would be theirs"
            )

    def add(self, survivors: Sequence[int]) -> Revealed:
        """Return the memory after one more sum."""
        new = tuple(survivors)
        return Revealed((*(listed for listed in self.lists if listed != new), new)[-MOST_LISTS:])

    def to_numbers(self) -> list[int]:
        """Write the lists as whole numbers: each list's length, then its clients."""
        return list(itertools.chain.from_iterable((len(listed), *listed) for listed in self.lists))

    @classmethod
    def from_numbers(cls, numbers: Iterable[int]) -> Revealed:
        """Read `to_numbers`."""
        rest = iter(numbers)
        return cls(tuple(tuple(itertools.islice(rest, length)) for length in rest))
