"""`flwr run .` as people type it: a local SuperLink starts, and Flower runs the bundle on Ray."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fl_app.results import load_run

BIN = Path(sys.executable).parent


@pytest.fixture
def flower(tmp_path):
    """Return the environment of Flower's commands; stop the SuperLink that they leave."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    home = tmp_path / "flower"
    yield os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(word.startswith(str(home)) for word in words):
            os.kill(int(process.name), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.skipif(not (BIN / "flwr").exists(), reason="Flower's commands are not here")
def test_flwr_run_trains_with_the_keys_of_the_run_config_and_names_the_report(flower, repository, tmp_path):
    done = subprocess.run(
        [
            *("flwr", "run", str(repository), "--stream"),
            *("--federation-config", "num-supernodes=2 client-resources-num-cpus=1"),
            *("-c", 'num-server-rounds=1 defense="topk" attack="none" lr=0.1 seed=3'),
            *("-c", 'overrides="data.train_per_class=8 data.test_per_class=4 threads=1"'),
        ],
        cwd=tmp_path,
        env=flower,
        capture_output=True,
        text=True,
        timeout=1500,
        check=True,
    )
    (report,) = re.findall(r"report: (/.*report\.html)", done.stdout + done.stderr)
    run = load_run(Path(report).parent)
    assert run.status == "finished"
    assert run.rounds[0].clients == run.config["clients"] == 2
    assert (run.defense, run.config["lr"], run.config["seed"]) == ("topk", 0.1, 3)
