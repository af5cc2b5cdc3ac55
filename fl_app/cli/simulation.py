"""The command ``flower-simulation --app FOLDER``: any Flower app, in this process or on Ray."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_app import server_app
from fl_app.cli.announcement import announce
from fl_app.cli.own_code import OPTION, add_option, import_from_here, search_in
from fl_app.config.compose import split_overrides
from fl_app.config.run_keys import overrides_of
from fl_app.console.logs import show_logs, show_rounds
from fl_app.experiments.job import run_job
from fl_app.flower import ENGINES, fuse, read_app, run_app
from fl_app.flower.watched import WatchedGrid


def main(arguments: list[str] | None = None) -> None:
    """Run the app that the arguments name."""
    args = _parser().parse_args(arguments)
    show_logs(args.verbose)
    app = read_app(Path(args.app))
    server, client = app.load()
    run_config = fuse(app.config, args.run_config)
    backend = _json(args.backend_config) if args.backend_config else {}
    if server is server_app.app:
        import_from_here()
        overrides = [*search_in(args.config_dir), *split_overrides(overrides_of(run_config, None))]
        # the bare command is the demo: pictures that a reader recognises, several clients attacked
        overrides += ["experiment=demo"] if not args.run_config and args.num_supernodes is None else []
        overrides += [f"clients={args.num_supernodes}"] if args.num_supernodes is not None else []
        overrides += [f"engine={args.backend}"] if args.backend else []
        announce(run_job(overrides, backend=backend, verbose=args.verbose))
    elif args.config_dir is not None:
        raise ValueError(f"{OPTION}: goes with this package's own app, got {args.app}")
    elif args.num_supernodes is None:
        raise ValueError("--num-supernodes: this app does not say how many clients it wants; give a number")
    else:
        engine = {"name": args.backend or "inline"} | backend
        show_rounds()
        run_app(
            _watched(server),
            client,
            args.num_supernodes,
            run_config=run_config,
            engine=engine,
            verbose=args.verbose,
        )


def _watched(server: ServerApp) -> ServerApp:
    """Return an app that fails at the end if every client failed in every round."""
    watched = ServerApp()

    @watched.main()
    def main(grid: Grid, context: Context) -> None:
        seen = WatchedGrid(grid)
        server(seen, context)
        seen.check()

    return watched


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flower-simulation", description="Run a Flower app as a simulation."
    )
    parser.add_argument(
        "--app", required=True, help="the folder with pyproject.toml, or a package folder in it"
    )
    parser.add_argument("--num-supernodes", type=int, help="number of clients; default: the app's own")
    parser.add_argument("--backend", choices=ENGINES, help="inline: in this process (default); ray: Flower's")
    parser.add_argument("--backend-config", help="JSON for Ray: client_resources, init_args, actor")
    parser.add_argument("--run-config", action="append", default=[], help="'key=value …' or a TOML file")
    parser.add_argument("--verbose", action="store_true", help="show logs")
    add_option(parser)
    return parser


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--backend-config: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"--backend-config: expected an object, got {text}")
    return value
