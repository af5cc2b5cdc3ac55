"""Whole federations, by the commands of docker-compose.yml, as processes on loopback addresses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from compose_harness import Harness

from fl_app.deploy.certificates import make_key_pair
from fl_app.deploy.flower_command import flower_command

BIN = Path(sys.executable).parent
QUICK = "data.train_per_class=8 data.test_per_class=4 batch_size=4 threads=1 attack.steps=2"

pytestmark = pytest.mark.skipif(
    not (BIN / "flower-superlink").exists(), reason="Flower's commands are not beside this interpreter"
)


@pytest.fixture(scope="module")
def federation(request, tmp_path_factory):
    repository = Path(__file__).resolve().parents[2]
    cache = Path(os.environ.get("FL_APP_CACHE", repository / ".cache"))
    with Harness(
        repository / "docker-compose.yml",
        tmp_path_factory.mktemp("federation"),
        variables={"FL_APP_ALLOW_AUDIT": "1"},
        content={"/app/project": repository, "/app/cache": cache},
    ) as harness:
        harness.up()
        yield harness


def nodes(federation: Harness) -> dict[str, str]:
    """How the SuperLink sees its nodes, by the end of their public keys or their ids."""
    with flower_command(
        f"{federation.address('superlink')}:8000", federation.volume("trust") / "ca.crt"
    ) as flower:
        answer = json.loads(flower.run("supernode", "list", "--format", "json").stdout)
    return {node["node-id"]: node["status"] for node in answer["nodes"]}


def result_of(federation: Harness, said: str) -> dict:
    (report,) = [line.split("report: ")[1].strip() for line in said.splitlines() if "report: " in line]
    folder = federation.volume("runs").parent / Path(report).parent
    assert (folder / "report.html").is_file()
    return json.loads((folder / "result.json").read_text())


def until(true, federation: Harness, who: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, federation.log(who)
        time.sleep(1)


def joined(federation: Harness, name: str) -> int:
    """How often a node was let in."""
    return federation.log(name).count("SuperNode ID")


def turned_away(federation: Harness, key: Path, home: Path) -> str:
    """Start a node with ``key`` and return what it says when it has ended by itself."""
    command = [
        str(BIN / "flower-supernode"),
        f"--superlink={federation.address('superlink')}:8000",
        f"--root-certificates={federation.volume('trust') / 'ca.crt'}",
        f"--auth-supernode-private-key={key}",
        f"--host={federation.address('runner')}",
    ]
    said, environment = home / "log", os.environ | {"FLWR_HOME": str(home)}
    with said.open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        assert process.wait(120) != 0
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # a child of its own may take its time
    return said.read_text()


def test_a_federation_outlives_a_node_and_turns_strangers_away(federation, tmp_path):
    for name in ("supernode-0", "supernode-1", "supernode-2"):
        until(lambda name=name: joined(federation, name) == 1, federation, name)
    known = nodes(federation).keys()
    federation.kill("supernode-2")
    make_key_pair(tmp_path / "key", tmp_path / "key.pub")
    assert "Exit Code: 305" in turned_away(federation, tmp_path / "key", tmp_path)
    until(lambda: "Failed to activate" in federation.log("supernode-2"), federation, "supernode-2")
    until(lambda: joined(federation, "supernode-2") == 2, federation, "supernode-2")
    assert federation.starts("supernode-2") > 2
    assert nodes(federation).keys() == known

    done = federation.run("runner", f'overrides="rounds=2 defense=dgp {QUICK}"')
    assert done.returncode == 0, done.stdout + done.stderr
    result = result_of(federation, done.stdout + done.stderr)
    assert result["status"] == "finished"
    assert [row["clients"] for row in result["rounds"]] == [3, 3]
    assert {attack["update"] for attack in result["attacks"]} == {"defended", "undefended"}
    assert all(attack["psnr"] for attack in result["attacks"])
