"""A node's policy around a foreign app in a deployed federation of real processes."""

import json
import sys

import pytest
from deployed import needs_flower
from plain_federation import plain_federation

pytestmark = [pytest.mark.slow, needs_flower]
SECRET = "the patient in row 17"
PROJECT = """
[project]
name = "foreign"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "hospital"
[tool.flwr.app.components]
serverapp = "foreign:server"
clientapp = "foreign:client"
[tool.flwr.app.config]
way = "honest"
"""
APP = '''
import os, sys
from pathlib import Path
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

SECRET = "the patient in row 17"
client = ClientApp()
server = ServerApp()


def look_around():
    """Return what this process can learn of the node's own processes and tokens."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if b"enforcement.clientapp" in command or b"flower-supernode" in command or b"superexec" in command:
            if b"--token" in command:
                found.append("a token")
            for name in ("environ", "fd/0") if os.geteuid() else ():  # root may read everything
                try:
                    open(folder / name, "rb").close()
                    found.append(name)
                except OSError:
                    pass
    return found


@client.train()
def train(message, context):
    way = context.run_config["way"]
    weights = message.content["arrays"].to_numpy_ndarrays()
    after = [w + 0.01 * np.arange(1, w.size + 1, dtype=w.dtype).reshape(w.shape) for w in weights]
    content = RecordDict({"arrays": ArrayRecord(after), "metrics": MetricRecord({"num-examples": 50})})
    if way == "text":
        content["more"] = ConfigRecord({"text": SECRET})
    if way == "raise":
        raise ValueError(SECRET)
    if way == "look" and (found := look_around()):
        raise ValueError(f"found {found}")
    if way == "patch":
        import fl_app.enforcement.enforcer as enforcer
        enforcer.rebuild_reply = lambda policy, asked, reply, trains: reply
        content["more"] = ConfigRecord({"text": SECRET})
    return Message(content, reply_to=message)


@server.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=2, min_available_nodes=2)
    start = ArrayRecord([np.ones((4, 5), np.float32), np.zeros(20, np.float32)])
    result = strategy.start(grid=grid, initial_arrays=start, num_rounds=1, timeout=200)
    arrays = result.arrays.to_numpy_ndarrays() if result.arrays else []
    print("RESULT", [int(np.count_nonzero(a - s)) for a, s in zip(arrays, start.to_numpy_ndarrays())], "END")
'''
POLICY = """
min_samples = 10
[[apps.apply]]
name = "topk"
settings = { k = 0.2 }
"""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    (folder / "policy.toml").write_text(POLICY)
    guarded = (sys.executable, "-c", "from fl_app.enforcement.commands import supernode; supernode()")
    with plain_federation(folder, PROJECT, APP) as services:
        for node in (0, 1):
            state = folder / f"state-{node}"
            config = f'partition-id={node} num-partitions=2 policy="{folder}/policy.toml" state-dir="{state}"'
            services.add_node(f"node-{node}", "--node-config", config, command=guarded)
        services.wait_for_nodes()
        yield folder, lambda way: services.run(f'way="{way}"')


def test_the_nodes_prune_the_updates_of_an_app_that_knows_nothing_of_it(federation):
    folder, run = federation
    said = run("honest")
    assert "RESULT [4, 4] END" in said, said[-3000:]
    for node in (0, 1):
        log = (folder / f"state-{node}" / "leaving.jsonl").read_text().splitlines()
        assert json.loads(log[-1])["allowed"]


@pytest.mark.parametrize(("way", "code"), [("text", "records"), ("raise", "internal"), ("patch", "records")])
def test_a_hostile_app_sends_nothing_but_a_code(federation, way, code):
    folder, run = federation
    said = run(way)
    assert f"[{code}]" in said
    assert SECRET not in said
    assert "RESULT [] END" in said
    for node in (0, 1):
        line = json.loads((folder / f"state-{node}" / "leaving.jsonl").read_text().splitlines()[-1])
        assert (line["allowed"], line["decision"]) == (False, code)


def test_an_app_finds_no_token_on_a_command_line_and_without_root_no_memory_of_the_node(federation):
    folder, run = federation
    assert "RESULT [4, 4] END" in "".join(run("look").split("\n")), (folder / "node-0.log").read_text()[
        -3000:
    ]
