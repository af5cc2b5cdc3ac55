"""Aligned dual gradient pruning on Flower: all clients prune to positions that some of them choose."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from flwr.serverapp import Grid
from torch import Tensor, nn

from fl_app.seeding import SERVER, generator_for
from fl_app.sketches.selection import exact, location_counts
from fl_app.strategies.arguments import ConfiguredRun, check_numbers
from fl_app.strategies.fed_sgd import FedSGD
from fl_app.strategies.location_vote import agreement, vote
from fl_app.strategies.optimisers import ServerOptimiser
from fl_app.strategies.robust import Rule
from fl_app.training.schedules import Schedule
from fl_app.types import Update
from fl_app.wire import CodecError, decode_masks, encode
from fl_app.wire.messages import LOCATE, LocationQuery, pack_blob

LOCATIONS = ("random", "vote")
SLACK = 0.05
"""Agreement with others, from chance (0) to full (1), below which a voter is reported as an outlier."""


class ADGP(FedSGD):
    """FedSGD at the positions of one round's broadcast (Xue et al., Algorithm 2).

    Before the orders go out, one drawn client names ``2 * k`` positions of every
    tensor: the largest entries of its update. All clients prune to them
    (`prune_aligned`), so uploads index into the broadcast, and the model changes
    nowhere else. ``location="vote"`` asks ``voters`` clients and takes the positions
    with the most votes, so one malicious client cannot choose alone. A client that
    names a wrong number of positions is left out of the round, and another is drawn.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        k: float,
        min_size: int = 4,
        location: str = "random",
        voters: int = 3,
        clients: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_available_nodes: int = 2,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        optimiser: ServerOptimiser | None = None,
        downlink: str = "auto",
        exchange_buffers: bool = True,
        timeout: float | None = None,
        wait: float = 60.0,
        seed: int = 0,
        aggregate: Rule | None = None,
        run: ConfiguredRun | None = None,
    ) -> None:
        super().__init__(
            model,
            lr,
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            momentum=momentum,
            weight_decay=weight_decay,
            optimiser=optimiser,
            downlink=downlink,
            exchange_buffers=exchange_buffers,
            timeout=timeout,
            wait=wait,
            seed=seed,
            aggregate=aggregate,
            run=run,
        )
        check_numbers("ADGP", k=k, min_size=min_size, voters=voters)
        if not 0 < k <= 0.5:
            raise ValueError(f"ADGP: k must be in (0, 0.5], got {k}")
        if location not in LOCATIONS:
            raise ValueError(f"ADGP: location must be one of {', '.join(LOCATIONS)}, got {location!r}")
        if location == "vote" and voters < 2:
            raise ValueError(f"ADGP: voters must be at least 2, got {voters}")
        if self.momentum or self.weight_decay:
            raise ValueError(
                "ADGP: momentum and weight_decay must be 0, else the model moves where no client knows, "
                f"got {self.momentum} and {self.weight_decay}"
            )
        if not self.reversible:
            raise ValueError("ADGP: takes no optimiser, which may move the model where no client knows")
        self.voters = voters if location == "vote" else 1
        self._query = LocationQuery(share=float(2 * exact(k)), min_size=min_size)

    def prepare(self, server_round: int, grid: Grid) -> None:
        """Learn this round's positions from clients in the order of a draw."""
        self.within = self._locations = None
        candidates = self._drawn(server_round)
        named: dict[int, Update] = {}
        while candidates and len(named) < self.voters:
            count = self.voters - len(named)
            asked, candidates = candidates[:count], candidates[count:]
            named |= self._ask(asked)
        if not named:
            self.exchange.note("no client named locations: the model is unchanged")
            self.exchange.sampled = {}
            return
        self.within = self._elect(server_round, named)
        self._locations = pack_blob(encode(self.within))

    def _drawn(self, server_round: int) -> list[int]:
        cohort = list(self.exchange.sampled)
        generator = generator_for(self._seed, server_round, SERVER, "broadcaster")
        return [cohort[i] for i in torch.randperm(len(cohort), generator=generator, device="cpu").tolist()]

    def _ask(self, clients: list[int]) -> dict[int, Update]:
        """Return the locations that clients named; leave out clients without usable ones."""
        bases = {client: self.downlink.base_for(client) for client in sorted(clients)}
        pack = self._pack(LOCATE, self._query)
        replies = self._collect(LOCATE, self.exchange.send(self.exchange.messages(LOCATE, bases, pack)), pack)
        named: dict[int, Update] = {}
        for client in sorted(clients):
            if client in replies:
                try:
                    named[client] = self._read(replies[client].update)
                except CodecError as error:
                    self.exchange.fail(client, f"its locations are refused: {error}")
            elif client not in {failure.client for failure in self.records[-1].failures}:
                self.exchange.fail_silent(client, "named no locations in time")
            if client not in named:
                del self.exchange.sampled[client]
        return named

    def _read(self, blob: bytes) -> Update:
        masks = decode_masks(blob, self.weights)
        counts = location_counts(masks, self._query.share, self._query.min_size)
        for name, mask in masks.items():
            if int(mask.sum()) != counts[name]:
                raise CodecError(
                    f"{name} must have {counts[name]} of {mask.numel()} positions, got {int(mask.sum())}"
                )
        return masks

    def _elect(self, server_round: int, named: Mapping[int, Update]) -> Update:
        if len(named) == 1:
            return next(iter(named.values()))
        agreed = agreement(named)
        chance = _share(next(iter(named.values())))
        for client, share in agreed.items():
            if share <= chance + SLACK * (1 - chance) and len(named) > 2:
                self.exchange.note(
                    f"client {client} was outvoted: {share:.0%} of its locations are another voter's, "
                    f"by chance it would be {chance:.0%}"
                )
        generator = generator_for(self._seed, server_round, SERVER, "ties")
        return vote(list(named.values()), generator)


def _share(masks: Mapping[str, Tensor]) -> float:
    return sum(int(mask.sum()) for mask in masks.values()) / sum(mask.numel() for mask in masks.values())
