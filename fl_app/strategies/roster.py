"""Who takes part: clients by their partition id, never by Flower's random node id."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fl_app.console.words import foreign
from fl_app.seeding import SERVER, generator_for
from fl_app.wire.messages import IDENTIFY, MessageError, unpack_identity

logger = logging.getLogger(__name__)


class Roster:
    """The clients that are there, in the order of their partition ids.

    Flower's node ids are drawn at random and come in any order; sampling, seeds
    and summation by partition id make a run repeatable.
    """

    def __init__(self, clients: int, *, wait: float = 60.0, answer_within: float | None = None) -> None:
        if clients < 1:
            raise ValueError(f"Roster: clients must be at least 1, got {clients}")
        self.expected = clients
        self._wait = wait
        self._answer_within = answer_within
        self._client_of: dict[int, int] = {}  # by node id, for every node that ever answered
        self.own_data: set[int] = set()
        """The clients that train on samples of their own."""

    def present(self, grid: Grid) -> dict[int, int]:
        """Return {client: node id} of the nodes that are there now, in the order of clients."""
        nodes = self._wait_for_nodes(grid)
        self._identify(grid, [node for node in nodes if node not in self._client_of])
        present: dict[int, int] = {}
        for node in sorted(nodes & self._client_of.keys()):
            client = self._client_of[node]
            if client in present:
                logger.warning(
                    "node %d says it is client %d, as node %d does: left out", node, client, present[client]
                )
                continue
            present[client] = node
        return dict(sorted(present.items()))

    def _wait_for_nodes(self, grid: Grid) -> set[int]:
        """Wait for the federation to be complete, once: later a node may be missing."""
        deadline = time.monotonic() + self._wait
        while True:
            nodes = set(grid.get_node_ids())
            if len(nodes) >= self.expected or self._client_of:
                return nodes
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"Roster: expected {self.expected} clients, {len(nodes)} came within {self._wait:g} s; "
                    f"set clients={len(nodes)} or start more SuperNodes"
                )
            time.sleep(0.1)

    def _identify(self, grid: Grid, nodes: Iterable[int]) -> None:
        queries = [Message(RecordDict(), node, IDENTIFY) for node in sorted(nodes)]
        if not queries:
            return
        for reply in grid.send_and_receive(queries, timeout=self._answer_within):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise MessageError(reply.error.reason)
                identity = unpack_identity(reply)
                self._client_of[node] = identity.client
                if identity.own_data:
                    self.own_data.add(identity.client)
            except MessageError as error:
                logger.warning(
                    "node %d did not say which client it is and is left out: %s", node, foreign(error)
                )


def sample(clients: list[int], fraction: float, *, seed: int, round: int) -> list[int]:
    """Draw ``fraction`` of the clients (at least one), in their order."""
    count = max(1, round_half_up(fraction * len(clients)))
    if count >= len(clients):
        return clients
    generator = generator_for(seed, round, SERVER, "cohort")
    drawn = torch.randperm(len(clients), generator=generator, device="cpu")[:count]
    return [clients[i] for i in sorted(drawn.tolist())]


def round_half_up(value: float) -> int:
    """Round to the nearest whole number, halves up (Python's round goes to even)."""
    return int(value + 0.5)
