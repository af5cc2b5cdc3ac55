"""Candidates of a membership audit: a client trains on some of them, by a coin for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fl_app.data.dataset import Samples
from fl_app.seeding import generator_for


class Dealt(NamedTuple):
    """A client's candidates, and the samples that it trains on."""

    candidates: Samples
    members: Tensor
    """Which candidates it trains on (N,)."""
    kept: Samples
    """All its samples but the other candidates."""


@dataclass(frozen=True)
class Game:
    """Rule by which audited clients choose candidates and leave some out of training."""

    candidates: int
    """Candidates of each client, if it has as many samples."""
    clients: Sequence[int] | str
    """Clients that play, or "all"."""
    draws: Callable[[int], torch.Generator]
    """Generator of a client's draws."""
    dealt: dict[int, Dealt] = field(default_factory=dict, compare=False)

    def plays(self, client: int) -> bool:
        """Return whether a client has candidates."""
        return self.clients == "all" or client in self.clients

    def deal(self, client: int, samples: Samples) -> Dealt:
        """Return the client's candidates, the same in all rounds."""
        if client not in self.dealt:
            self.dealt[client] = deal(samples, self.candidates, self.draws(client))
        return self.dealt[client]


def game_of(candidates: int, clients: Sequence[int] | str, num_clients: int, seed: int) -> Game:
    """Return the game in which ``clients`` have ``candidates`` together."""
    players = num_clients if isinstance(clients, str) else len(set(clients))
    each = -(-candidates // max(1, players))
    return Game(each, clients, lambda client: generator_for(seed, 0, client, "candidates"))


def deal(samples: Samples, count: int, generator: torch.Generator) -> Dealt:
    """Draw ``count`` candidates and flip a coin for each; some sample is always kept."""
    order = torch.randperm(len(samples), generator=generator, device="cpu")
    chosen = order[: min(count, len(samples))]
    members = torch.rand(len(chosen), generator=generator, device="cpu") < 0.5
    if len(chosen) == len(samples) and not members.any():
        members[0] = True
    left = torch.ones(len(samples), dtype=torch.bool, device="cpu")
    left[chosen[~members]] = False
    return Dealt(samples.take(chosen), members, samples.take(left))
