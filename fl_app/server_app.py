"""The Flower ServerApp: one whole run of what the run config describes."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_app.federation import run_federation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, attack, report."""
    run_federation(grid, str(context.run_config.get("overrides", "")))
