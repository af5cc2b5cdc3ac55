"""Nodes of a grid: wait until they are there."""

from __future__ import annotations

import time

from flwr.serverapp import Grid

_POLL = 0.1


def wait_for_nodes(grid: Grid, least: int, *, seconds: float, settled: bool) -> set[int]:
    """Return the ids of the nodes once there are ``least``; ``settled``: and once no more come.

    A TimeoutError says how many came.
    """
    deadline = time.monotonic() + seconds
    before: set[int] = set()
    while True:
        nodes = set(grid.get_node_ids())
        if len(nodes) >= least and (not settled or nodes == before):
            return nodes
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"expected {least} clients, {len(nodes)} came within {seconds:g} s; "
                f"set clients={len(nodes)} or start more SuperNodes"
            )
        before = nodes
        time.sleep(_POLL)
