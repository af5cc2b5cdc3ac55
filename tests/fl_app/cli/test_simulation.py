"""`flower-simulation` and `fl-app simulate` on an app that has nothing of this package."""

import subprocess
import sys

import pytest

from fl_app.cli.simulation import main
from fl_app.console.stated_failure import StatedFailure

PROJECT = """
[project]
name = "theirs"
version = "1.0.0"
[tool.flwr.app]
publisher = "them"
[tool.flwr.app.components]
serverapp = "{module}:server"
clientapp = "{module}:client"
[tool.flwr.app.config]
broken = false
"""
APP = """
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client, server = ClientApp(), ServerApp()


@client.train()
def train(message, context):
    if context.run_config["broken"]:
        raise RuntimeError(f"no card in slot {context.node_config['partition-id']}")
    arrays = ArrayRecord([array + 1 for array in message.content["arrays"].to_numpy_ndarrays()])
    metrics = MetricRecord({"num-examples": 5, "score": 0.25})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@server.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=2)
"""


@pytest.fixture
def theirs(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"theirs_{tmp_path.name}"
    (tmp_path / "pyproject.toml").write_text(PROJECT.format(module=module))
    (tmp_path / f"{module}.py").write_text(APP)
    return str(tmp_path)


def test_a_foreign_app_shows_its_rounds_and_results(theirs):
    command = [sys.executable, "-m", "fl_app", "simulate", "--app", theirs, "--num-supernodes", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    said = done.stdout + done.stderr
    assert [f"[ROUND {number}/2]" in said for number in (1, 2)] == [True, True]
    assert "'score': '2.5000e-01'" in said


def test_a_foreign_app_whose_clients_all_fail_has_failed(theirs):
    with pytest.raises(StatedFailure, match=r"no card in slot \d.*6 of 6"):
        main(["--app", theirs, "--num-supernodes", "3", "--run-config", "broken=true"])
