"""The Flower ServerApp: one whole run of what the run config describes."""

from __future__ import annotations

import logging

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_app.config.trust import trust_of
from fl_app.running.federation import run_federation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, attack, report."""
    overrides = str(context.run_config.get("overrides", ""))
    report = run_federation(grid, overrides, trust_of(context.node_config))
    # by Flower's own logger: a deployment shows that to the user who started the run
    logging.getLogger("flwr").info("report: %s", report)
