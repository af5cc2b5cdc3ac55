"""The Flower ServerApp: one whole run of what the run config describes."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_app.client_app import app as client_app
from fl_app.config.run_keys import is_auto, overrides_of
from fl_app.config.trust import trust_of
from fl_app.flower.nodes import wait_for_nodes
from fl_app.running.federation import run_federation

_WAIT = 60.0
"""Seconds for the first node to come."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, attack, report."""
    clients = None
    if is_auto(context.run_config):
        clients = len(wait_for_nodes(grid, 1, seconds=_WAIT, settled=True))
    overrides = overrides_of(context.run_config, clients)
    report = run_federation(grid, overrides, trust_of(context.node_config), client_app=client_app).resolve()
    # by Flower's own logger: a deployment shows that to the user who started the run
    logging.getLogger("flwr").info("report: %s", report)
