"""Start of a Flower app's server on an engine chosen by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import Context, RecordDict, UserConfigValue
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_app.flower.inline import InlineGrid
from fl_app.flower.own_nodes import OWN_NODE
from fl_app.flower.ray import run_on_ray

ENGINES = ("inline", "ray")


def run_app(
    server: ServerApp,
    client: ClientApp,
    num_supernodes: int,
    *,
    run_config: Mapping[str, UserConfigValue],
    engine: Mapping[str, Any],
    verbose: bool = False,
) -> None:
    """Run an app; ``engine`` has a name and, for Ray, Flower's backend config."""
    settings = dict(engine)
    name = settings.pop("name")
    if name == "ray":
        run_on_ray(
            server, client, num_supernodes, run_config=run_config, backend_config=settings, verbose=verbose
        )
    elif name == "inline":
        grid = InlineGrid(client, num_supernodes, run_config=run_config)
        server(grid, Context(1, 0, dict(OWN_NODE), RecordDict(), dict(run_config)))
    else:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
