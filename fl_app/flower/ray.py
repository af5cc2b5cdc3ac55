"""Flower's Ray runtime for the same apps: processes, and GPUs shared among clients.

Flower's public `run_simulation` takes no run config. So the apps are wrapped:
each call sees the config of this run in its context, as under `flwr run`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from flwr.app import Context, Message, UserConfigValue
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fl_app.flower.forwarding import ForwardingGrid
from fl_app.flower.own_nodes import OWN_NODE

_POLL_SECONDS = 0.1

Config = Mapping[str, UserConfigValue]


def run_on_ray(
    server_app: ServerApp,
    client_app: ClientApp,
    num_supernodes: int,
    *,
    run_config: Config,
    backend_config: dict[str, Any] | None = None,
    verbose: bool = False,
) -> None:
    """Run a Flower app on Ray; ``backend_config`` is Flower's (init_args, client_resources, actor)."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # imported here: Ray's runtime is heavy and only this engine needs it
    from flwr.simulation import run_simulation

    config = dict(backend_config or {})
    resources = {"num_cpus": 1, "num_gpus": None} | config.get("client_resources", {})
    if resources["num_gpus"] is None:
        resources["num_gpus"] = _gpu_share(num_supernodes)
    config["client_resources"] = resources
    with _interruptions() as interrupted:
        run_simulation(
            server_app=_configured_server(server_app, run_config, interrupted),
            client_app=_ConfiguredClient(client_app, run_config, OWN_NODE),
            num_supernodes=num_supernodes,
            backend_config=config,
            verbose_logging=verbose,
        )
    if interrupted.is_set():
        raise KeyboardInterrupt


class _ConfiguredClient(ClientApp):
    """A client app whose context has this run's config and the simulation's node config."""

    def __init__(self, app: ClientApp, run_config: Config, node_config: Config) -> None:
        super().__init__()
        self._app = app
        self._own_run_config = dict(run_config)
        self._own_node_config = dict(node_config)

    def __call__(self, message: Message, context: Context) -> Message:
        outer = context.run_config, context.node_config
        context.run_config = dict(self._own_run_config)
        context.node_config = dict(context.node_config) | self._own_node_config
        try:
            return self._app(message, context)
        finally:
            context.run_config, context.node_config = outer


class _InterruptibleGrid(ForwardingGrid):
    """A grid that stops waiting when the user interrupts.

    Flower runs the server app in a thread, where Ctrl-C never arrives, and its
    grid waits for replies whatever happens.
    """

    def __init__(self, grid: Grid, interrupted: threading.Event) -> None:
        super().__init__(grid)
        self._interrupted = interrupted

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, for the timeout or for an interruption."""
        waiting = set(self._grid.push_messages(messages))
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and (deadline is None or time.monotonic() < deadline):
            found = list(self._grid.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            replies += found
            if waiting and self._interrupted.wait(_POLL_SECONDS):
                raise KeyboardInterrupt
        return replies


def _configured_server(app: ServerApp, run_config: Config, interrupted: threading.Event) -> ServerApp:
    wrapped = ServerApp()

    @wrapped.main()
    def main(grid: Grid, context: Context) -> None:
        context.run_config, context.node_config = dict(run_config), dict(OWN_NODE)
        # raised again in the main thread
        with suppress(KeyboardInterrupt):
            app(_InterruptibleGrid(grid, interrupted), context)

    return wrapped


@contextmanager
def _interruptions() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event that the server's thread sees; the second is Python's own."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = signal.getsignal(signal.SIGINT)

    def first(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, first)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


def _gpu_share(clients: int) -> float:
    """Return the part of a GPU that each client gets: all of them fit, none sits idle."""
    import torch

    gpus = torch.cuda.device_count()
    return min(1.0, gpus / clients) if gpus else 0.0
