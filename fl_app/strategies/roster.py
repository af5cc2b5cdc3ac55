"""Roster of clients by their partition id, never by Flower's random node id."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fl_app.console.words import foreign
from fl_app.flower.nodes import wait_for_nodes
from fl_app.privacy.cohorts import fixed_count
from fl_app.seeding import SERVER, generator_for
from fl_app.wire.messages import IDENTIFY, Identity, MessageError, unpack_identity

logger = logging.getLogger(__name__)

MOST_CLIENTS = 1 << 31


class Roster:
    """Connected clients, in the order of their partition ids.

    Flower's node ids are random and come in any order; sampling, seeds and summation by
    partition id make a run repeatable. The first node that claims a client id keeps it for the
    whole run: with its own keys, a node has the same id when it returns, and no other node can
    take its place.
    """

    def __init__(self, clients: int | None, *, least: int = 1, wait: float = 60.0) -> None:
        for what, number in (("clients", clients), ("min_available_nodes", least)):
            if number is not None and number < 1:
                raise ValueError(f"Roster: {what} must be at least 1, got {number}")
        self.expected = clients
        """Number of clients; None: all connected ones, at least ``least`` at the start."""
        self._least = least if clients is None else clients
        self._wait = wait
        self._node_of: dict[int, int] = {}
        self._turned_away: set[int] = set()
        self._missed: dict[int, int] = {}
        """Unanswered requests per node; the wait until the next one doubles each time, in rounds."""
        self._rounds = 0
        self.own_data: set[int] = set()
        """Clients that train on their own samples."""

    def present(self, grid: Grid) -> dict[int, int]:
        """Return {client: node id} of the nodes connected now, in the order of clients."""
        nodes = self._wait_for_nodes(grid)
        known = {*self._node_of.values(), *self._turned_away}
        self._identify(grid, [node for node in nodes - known if self._is_due(node)])
        self._rounds += 1
        return {client: node for client, node in sorted(self._node_of.items()) if node in nodes}

    def _is_due(self, node: int) -> bool:
        return self._rounds % (1 << min(self._missed.get(node, 0), 10)) == 0

    def _wait_for_nodes(self, grid: Grid) -> set[int]:
        """Wait once until the federation is complete; later a node may be missing."""
        if self._node_of:
            return set(grid.get_node_ids())
        try:
            return wait_for_nodes(grid, self._least, seconds=self._wait, settled=self.expected is None)
        except TimeoutError as error:
            raise TimeoutError(f"Roster: {error}") from error

    def _identify(self, grid: Grid, nodes: Iterable[int]) -> None:
        queries = [Message(RecordDict(), node, IDENTIFY) for node in sorted(nodes)]
        if not queries:
            return
        for query in queries:
            node = query.metadata.dst_node_id
            self._missed[node] = self._missed.get(node, 0) + 1
        for reply in grid.send_and_receive(queries):
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise MessageError(reply.error.reason)
                self._bind(node, unpack_identity(reply))
            except MessageError as error:
                logger.warning("node %d is left out: %s", node, foreign(error))

    def _bind(self, node: int, identity: Identity) -> None:
        """Bind a node to its client; raise a MessageError if it cannot be that client."""
        client = identity.client
        self._turned_away.add(node)
        most = MOST_CLIENTS if self.expected is None else self.expected
        if not 0 <= client < most:
            raise MessageError(f"it must be a client from 0 to {most - 1}, got {client}")
        if client in self._node_of:
            raise MessageError(f"it says it is client {client}, and node {self._node_of[client]} is")
        if self.expected not in (None, identity.num_clients) and not identity.own_data:
            logger.warning(
                "node %d deals the data out among %d clients, the server among %d",
                node,
                identity.num_clients,
                self.expected,
            )
        self._turned_away.discard(node)
        self._node_of[client] = node
        if identity.own_data:
            self.own_data.add(client)


def sample(clients: list[int], fraction: float, *, seed: int, round: int) -> list[int]:
    """Draw ``fraction`` of the clients (at least one), in their order."""
    count = fixed_count(len(clients), fraction)
    if count >= len(clients):
        return clients
    generator = generator_for(seed, round, SERVER, "cohort")
    drawn = torch.randperm(len(clients), generator=generator, device="cpu")[:count]
    return [clients[i] for i in sorted(drawn.tolist())]
