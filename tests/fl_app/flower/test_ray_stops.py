"""A Ray that does not start, or dies, ends the run: nothing is left waiting."""

import json
import threading
from contextlib import suppress

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_app import client_app
from fl_app.console.stated_failure import StatedFailure
from fl_app.experiments.job import run_job
from fl_app.flower import InlineGrid
from fl_app.flower.ray import run_on_ray
from fl_app.wire.messages import TRAIN

SMALL = ["clients=2", "data.train_per_class=4", "data.test_per_class=2", "batch_size=4", "attack=none"]
RUN = [*SMALL, "threads=1", "rounds=3", "baseline=false", "engine=ray"]


class DyingGrid(InlineGrid):
    """Nodes that identify themselves and answer until a round; then nothing comes any more."""

    def __init__(self, last, overrides):
        super().__init__(client_app.app, 2, run_config={"overrides": overrides})
        self.left = last
        self.silent = threading.Event()

    def pull_messages(self, message_ids):
        return [] if self.silent.is_set() else super().pull_messages(message_ids)

    def push_messages(self, messages):
        listed = list(messages)
        if {message.metadata.message_type for message in listed} == {TRAIN}:
            self.left -= 1
            if self.left < 0:
                self.silent.set()
                return [str(number) for number, _ in enumerate(listed)]
        return super().push_messages(listed)


class EmptyGrid(DyingGrid):
    """No node ever comes."""

    def get_node_ids(self):
        self.silent.set()
        return []


def flower_that_dies(grid_type, last):
    """Return what Flower's runtime does then: it raises in the main thread, and leaves the server's alone."""

    def simulate(*, server_app, **others):
        grid = grid_type(last, " ".join(RUN))
        context = Context(1, 0, {}, RecordDict(), {})
        threading.Thread(target=quietly, args=(server_app, grid, context)).start()
        assert grid.silent.wait(120)
        try:
            raise OSError("the raylet did not start")
        except OSError as error:
            raise RuntimeError("An error was encountered. Ending simulation.") from error

    def quietly(server_app, grid, context):
        with suppress(Exception):  # Flower puts it into a queue
            server_app(grid, context)

    return simulate


@pytest.mark.parametrize(("grid_type", "last"), [(EmptyGrid, 0), (DyingGrid, 0), (DyingGrid, 1)])
def test_a_run_whose_ray_stops_ends_as_failed_with_the_reason(tmp_path, monkeypatch, grid_type, last):
    monkeypatch.setattr("flwr.simulation.run_simulation", flower_that_dies(grid_type, last))
    threads = set(threading.enumerate())
    with pytest.raises(StatedFailure, match="OSError: the raylet did not start"):
        run_job(RUN, folder=tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "OSError: the raylet did not start" in result["error"]
    assert len(result["rounds"]) == last
    assert set(threading.enumerate()) <= threads


def test_an_error_of_the_server_itself_is_not_taken_for_one_of_ray(monkeypatch):
    def simulate(*, server_app, **others):
        server_app(InlineGrid(ClientApp(), 1), Context(1, 0, {}, RecordDict(), {}))

    server = ServerApp()

    @server.main()
    def main(grid, context):
        raise ValueError("its own")

    monkeypatch.setattr("flwr.simulation.run_simulation", simulate)
    with pytest.raises(ValueError, match="its own"):
        run_on_ray(server, ClientApp(), 1, run_config={})


def test_a_foreign_server_stops_waiting_too(monkeypatch):
    server, ended = ServerApp(), threading.Event()

    @server.main()
    def main(grid, context):
        try:
            grid.send_and_receive([Message(RecordDict(), node, TRAIN) for node in grid.get_node_ids()])
        finally:
            ended.set()

    monkeypatch.setattr("flwr.simulation.run_simulation", flower_that_dies(DyingGrid, 0))
    with pytest.raises(StatedFailure, match="raylet"):
        run_on_ray(server, ClientApp(), 2, run_config={})
    assert ended.is_set()
