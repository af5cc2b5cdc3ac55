"""The example apps train as they are: in this process, on Ray, and over a SuperLink as processes."""

import importlib.util
import os
import socket
import subprocess
import sys
import time
import tomllib
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from flwr.serverapp import ServerApp

from fl_app.flower import InlineGrid
from fl_app.flower.ray import run_on_ray

BIN = Path(sys.executable).parent
LEAST = {"vision": 0.5, "tabular": 0.9, "text": 0.9}
"""Accuracy on samples that no client has, at the end; a model that guesses is far below."""
NODES = 3


def load(folder):
    name = folder.name
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def config_of(folder):
    return tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]


@pytest.fixture(params=LEAST)
def folder(request, repository):
    return repository / "examples" / request.param


def test_an_example_learns_in_this_process(folder):
    app, config = load(folder), config_of(folder)
    result = app.federate(InlineGrid(app.client, 5), config)
    assert len(result.train_metrics_clientapp) == config["num-server-rounds"]
    assert result.evaluate_metrics_serverapp[config["num-server-rounds"]]["accuracy"] >= LEAST[folder.name]
    assert (config["num-server-rounds"] in result.evaluate_metrics_clientapp) == (folder.name == "text")


@pytest.mark.slow
def test_an_example_gives_the_same_model_on_ray(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    app, config = importlib.import_module(folder.name), config_of(folder) | {"num-server-rounds": 2}
    server, results = ServerApp(), []

    @server.main()
    def main(grid, context):
        results.append(app.federate(grid, config))

    run_on_ray(server, app.client, NODES, run_config=config)
    expected = app.federate(InlineGrid(app.client, NODES), config)
    if folder.name != "tabular":  # masks differ in every run, and so does the rounding of their sum
        (got,) = results
        assert {n: a.data for n, a in got.arrays.items()} == {n: a.data for n, a in expected.arrays.items()}
    assert len(results[0].train_metrics_clientapp) == 2


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextmanager
def started(*command, environment, log):
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


def until_listening(port):
    deadline = time.monotonic() + 120
    while True:
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, f"nothing listens on port {port}"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.skipif(not (BIN / "flower-superlink").exists(), reason="Flower's commands are not here")
def test_an_example_trains_over_a_superlink(folder, tmp_path, repository):
    port = free_port()
    environment = {**os.environ, "FLWR_HOME": str(tmp_path), "PYTHONPATH": str(repository)}
    environment |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"  # Flower starts commands of its own
    (tmp_path / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    link = ("--insecure", "--host", "127.0.0.1", "--port", str(port))
    with ExitStack() as stack:
        command = (str(BIN / "flower-superlink"), *link, "--disable-runtime-dependency-installation")
        stack.enter_context(started(*command, environment=environment, log=tmp_path / "link.log"))
        until_listening(port)
        for node in range(NODES):
            command = (
                str(BIN / "flower-supernode"),
                *("--insecure", "--superlink", f"127.0.0.1:{port}"),
                *("--host", "127.0.0.1", "--port", str(free_port())),
                *("--node-config", f"partition-id={node} num-partitions={NODES}"),
            )
            log = tmp_path / f"node-{node}.log"
            stack.enter_context(started(*command, environment=environment, log=log))
        run = (str(BIN / "flwr"), "run", str(folder), "here", "--stream", "-c", "num-server-rounds=2")
        ran = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    assert "[ROUND 2/2]" in said
    assert "'accuracy'" in said
    assert "left out" not in said
