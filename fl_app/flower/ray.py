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

from fl_app.console.stated_failure import StatedFailure
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
    server = _Server(server_app, run_config)
    with _interruptions(server.interrupted):
        try:
            run_simulation(
                server_app=server.app(),
                client_app=_ConfiguredClient(client_app, run_config, OWN_NODE),
                num_supernodes=num_supernodes,
                backend_config=config,
                verbose_logging=verbose,
            )
        except Exception as error:
            if server.has_failed:
                raise
            raise server.stop(f"Ray stopped: {_first_cause(error)}") from error
    if server.interrupted.is_set():
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


class _Server:
    """The server's app in the thread that Flower starts for it, where it can be told to stop."""

    def __init__(self, app: ServerApp, run_config: Config) -> None:
        self._inner, self._run_config = app, run_config
        self._thread: threading.Thread | None = None
        self.interrupted = threading.Event()
        self.stopped: StatedFailure | None = None
        self.has_failed = False
        """Whether the app itself raised an error, before it was stopped."""

    def app(self) -> ServerApp:
        """Return the app to run; its context has this run's config."""
        wrapped = ServerApp()

        @wrapped.main()
        def main(grid: Grid, context: Context) -> None:
            self._thread = threading.current_thread()
            context.run_config, context.node_config = dict(self._run_config), dict(OWN_NODE)
            try:
                # raised again in the main thread
                with suppress(KeyboardInterrupt):
                    self._inner(_StoppableGrid(grid, self), context)
            except BaseException:
                self.has_failed = self.stopped is None
                raise

        return wrapped

    def stop(self, reason: str) -> StatedFailure:
        """Let the app fail for ``reason`` once it uses the grid, wait for that, and return the error."""
        self.stopped = StatedFailure(reason)
        if self._thread is not None:
            self._thread.join()
        return self.stopped

    def check(self) -> None:
        """Raise the error or the interruption that ends this run, if there is one."""
        if self.stopped is not None:
            raise self.stopped
        if self.interrupted.is_set():
            raise KeyboardInterrupt


class _StoppableGrid(ForwardingGrid):
    """A grid that stops waiting when the user interrupts, and when there is no simulation any more.

    Flower runs the server app in a thread, where Ctrl-C never arrives, and its
    grid waits for replies whatever happens.
    """

    def __init__(self, grid: Grid, server: _Server) -> None:
        super().__init__(grid)
        self._server = server

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the connected nodes."""
        self._server.check()
        return super().get_node_ids()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have arrived."""
        self._server.check()
        return super().pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, for the timeout or until the run is stopped."""
        waiting = set(self._grid.push_messages(messages))
        deadline = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting and (deadline is None or time.monotonic() < deadline):
            found = list(self.pull_messages(waiting))
            waiting -= {reply.metadata.reply_to_message_id for reply in found}
            replies += found
            if waiting:
                self._server.interrupted.wait(_POLL_SECONDS)
        return replies


def _first_cause(error: BaseException) -> str:
    """Return the error at the beginning of a chain: Flower puts two of its own on top."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}"


@contextmanager
def _interruptions(interrupted: threading.Event) -> Iterator[None]:
    """Turn the first Ctrl-C into an event that the server's thread sees; the second is Python's own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def first(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _gpu_share(clients: int) -> float:
    """Return the part of a GPU that each client gets: all of them fit, none sits idle."""
    import torch

    gpus = torch.cuda.device_count()
    return min(1.0, gpus / clients) if gpus else 0.0
