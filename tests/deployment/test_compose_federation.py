"""Whole federations, by the commands of docker-compose.yml, as processes on loopback addresses."""

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
from compose_harness import Harness
from deployed import BIN, NODES, SMALL, Training, harness, joined, needs_flower, nodes, run, until
from disturbed_runs import DGP, counts, history_of
from PIL import Image

from fl_app.deploy.certificates import make_key_pair

QUICK = f"{SMALL} attack.steps=2"

pytestmark = needs_flower


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with harness(tmp_path_factory.mktemp("federation")) as services:
        services.up()
        yield services


def turned_away(federation: Harness, key: Path, home: Path) -> str:
    """Start a node with ``key`` and return what it says when it has ended by itself."""
    command = [
        str(BIN / "flower-supernode"),
        f"--superlink={federation.address('superlink')}:8000",
        f"--root-certificates={federation.volume('trust') / 'ca.crt'}",
        f"--auth-supernode-private-key={key}",
        f"--host={federation.address('runner')}",
    ]
    # it starts other commands of Flower by their names
    path = f"{BIN}:{os.environ['PATH']}"
    said, environment = home / "log", os.environ | {"FLWR_HOME": str(home), "PATH": path}
    with said.open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        assert process.wait(400) != 0
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # a child of its own may take its time
    return said.read_text()


@pytest.mark.slow
def test_a_federation_outlives_a_node_and_turns_strangers_away(federation, tmp_path):
    for name in NODES:
        until(lambda name=name: joined(federation, name) == 1, federation, name)
    known = nodes(federation).keys()
    federation.kill("supernode-2")
    make_key_pair(tmp_path / "key", tmp_path / "key.pub")
    assert "Exit Code: 305" in turned_away(federation, tmp_path / "key", tmp_path)
    until(lambda: "Failed to activate" in federation.log("supernode-2"), federation, "supernode-2")
    until(lambda: joined(federation, "supernode-2") == 2, federation, "supernode-2")
    assert federation.starts("supernode-2") > 2
    assert nodes(federation).keys() == known

    result = run(federation, f"rounds=2 defense=dgp {QUICK}")
    assert [row["clients"] for row in result["rounds"]] == [3, 3]
    assert {attack["update"] for attack in result["attacks"]} == {"defended", "undefended"}
    assert all(attack["psnr"] for attack in result["attacks"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "seen"),
    [
        ("defense=dgp", {"defended", "undefended"}),
        ("defense=adgp", {"defended", "undefended"}),
        (
            "defense=fl_top dp=client secagg=on secagg.min_clients=2 defense.share=0.3",
            {"masked", "sum", "undefended"},
        ),
    ],
)
def test_every_scheme_trains_and_is_attacked(scheme, seen, federation):
    result = run(federation, f"rounds=3 attack.rounds=[1] {scheme} {QUICK}")
    assert [row["clients"] for row in result["rounds"]] == [3, 3, 3]
    assert not any(row["failures"] for row in result["rounds"])
    assert {attack["update"] for attack in result["attacks"]} == seen
    assert all(attack["psnr"] for attack in result["attacks"])


@pytest.mark.slow
def test_a_run_goes_on_without_a_node_and_has_it_again_when_it_is_back(federation):
    overrides = f"{DGP} rounds=10"
    training = Training(federation, f"{overrides} run_dir=runs/dies")
    training.until_order("supernode-1", 2)
    federation.kill("supernode-1")
    code, said = training.end()
    assert code == 0, said
    seen = counts(federation, "dies")
    assert seen[:2] == [3, 2]
    assert seen[-1] == 3
    # what it held back before it died it knew from its disk
    history_of(federation, "dies", overrides, 1)


@pytest.mark.slow
def test_clients_bring_their_own_folders_one_of_them_from_another_machine(tmp_path):
    """The third node has a compose file and a key of its own, and lacks a class."""
    draw = np.random.default_rng(0)
    have = {"server": "abc", "clinic-0": "abc", "clinic-1": "abc", "clinic-2": "ca"}
    for place, name, i in (
        (place, name, i) for place, names in have.items() for name in names for i in range(5)
    ):
        file = tmp_path / place / name / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(file)
    secrets = tmp_path / "secrets"
    make_key_pair(secrets / "key", secrets / "public" / "clinic-2.pub")
    own = {"FL_NODE_CONFIG": 'data-root="/app/data"'}
    data = {f"FL_NODE_{i}_DATA": str(tmp_path / f"clinic-{i}") for i in (0, 1)}
    with harness(
        tmp_path / "one",
        **own,
        **data,
        FL_SERVER_DATA=str(tmp_path / "server"),
        FL_SERVER_NAMES="federation.example",
    ) as federation:
        federation.up("supernode-0", "supernode-1")
        done = federation.run("register", str(secrets / "public"))
        assert done.stdout == "clinic-2.pub: registered\n"
        (secrets / "ca.crt").write_bytes((federation.volume("trust") / "ca.crt").read_bytes())
        (tmp_path / "state").mkdir()
        with harness(
            tmp_path / "other",
            "docker-compose.node.yml",
            SUPERLINK=f"{federation.address('superlink')}:8000",
            PARTITION="2",
            PARTITIONS="3",
            FL_DATA=str(tmp_path / "clinic-2"),
            FL_STATE=str(tmp_path / "state"),
            FL_SECRETS=str(secrets),
            **own,
        ) as other:
            other.up()
            # the third service of the first file is not needed: its place is taken
            federation.services["runner"].depends_on.pop("supernode-2")
            # the server's own path, which is not one of the runner's
            source = f"data=imagefolder data.root={tmp_path / 'server'} balance=true"
            result = run(federation, f"rounds=2 {source} batch_size=8 threads=1 attack.steps=2")
    assert [row["clients"] for row in result["rounds"]] == [3, 3]
    assert any("samples of their own: 0, 1, 2" in note for note in result["notes"])
    assert all(attack["psnr"] for attack in result["attacks"])
