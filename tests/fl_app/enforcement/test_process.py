"""An app in a process of its own: it can change its own process, and nothing else."""

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from foreign_apps import ask
from own_apps import started

from fl_app.enforcement.enforcer import AppIdentity, Enforcer
from fl_app.enforcement.process import in_process
from fl_app.policy import Policy
from fl_app.policy.refusal import TEXTS

BUNDLE = "ab" * 32
APP = AppIdentity("hospital/app", "1.0.0", BUNDLE)
PROJECT = """
[project]
name = "app"
version = "1.0.0"
[tool.flwr.app]
publisher = "hospital"
[tool.flwr.app.components]
serverapp = "node_app:server"
clientapp = "node_app:client"
"""
HONEST = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
client = ClientApp()
extra = {}

@client.train()
def train(message, context):
    moved = {}
    for name, array in message.content["arrays"].items():
        start = array.numpy()
        change = 0.001 * np.arange(1, start.size + 1, dtype=start.dtype)
        moved[name] = Array(start + change.reshape(start.shape))
    numbers = MetricRecord({"num-examples": 50})
    return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": numbers, **extra}), reply_to=message)
"""
SECRET = "the patient in row 17"
PATCHING = f"""
import sys
from flwr.app import ConfigRecord, RecordDict
import fl_app.enforcement.enforcer, fl_app.enforcement.replies, fl_app.policy, fl_app.mods
def open_all(policy, asked, reply, *, trains):
    return reply
fl_app.enforcement.replies.rebuild_reply = fl_app.enforcement.enforcer.rebuild_reply = open_all
for module in list(sys.modules.values()):
    if getattr(module, "Refusal", None):
        module.Refusal = ValueError
{HONEST}
extra = {{"x": ConfigRecord({{"t": {SECRET!r}}})}}
"""
WRITING = """
import os, struct, sys
os.write(int(sys.argv[1]), {frames})
os._exit(0)
"""
HUGE = "struct.pack('<QQQ', 0, 1 << 60, 0)"
GARBAGE = "struct.pack('<QQQ', 0, 7, 0) + b'garbage'"
SHORT = "b'abc'"
LASTING = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "lasting-{mark}"])
time.sleep({seconds})
"""
CONNECTING = """
import socket
try:
    socket.create_connection(("127.0.0.1", {port}), timeout=5).close()
except OSError:
    pass
"""


@pytest.fixture
def install(tmp_path, monkeypatch, repository):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    paths = [repository, repository / "tests" / "support"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))

    def write(code: str) -> None:
        folder = tmp_path / "apps" / f"hospital.app.1.0.0.{BUNDLE[:8]}"
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(PROJECT)
        (folder / "node_app.py").write_text(code)

    return write


def answer(**apps):
    policy = Policy.model_validate({"metrics": ["train_loss"], "apps": apps})
    content = RecordDict(
        {"arrays": ArrayRecord(started().state_dict()), "config": ConfigRecord({"server-round": 1})}
    )
    return ask(Enforcer(APP, in_process(APP), policy), content)[0]


def test_an_app_in_a_process_of_its_own_answers_as_it_does_in_ours(install):
    install(HONEST)
    reply = answer(apply=[{"name": "topk", "settings": {"k": 0.2, "error_feedback": False}}])
    sent, start = reply.content["arrays"].to_torch_state_dict(), started().state_dict()
    for name, tensor in start.items():
        count, kept = tensor.numel(), max(1, tensor.numel() // 5)
        change = 0.001 * torch.arange(1, count + 1)
        change[: count - kept] = 0  # the largest are the last
        assert torch.allclose(sent[name], tensor + change.view(tensor.shape), atol=1e-6)


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        (PATCHING, "records"),
        (f"raise ImportError({SECRET!r})", "internal"),
        (WRITING.format(frames=HUGE), "bytes"),
        (WRITING.format(frames=GARBAGE), "unreadable"),
        (WRITING.format(frames=SHORT), "internal"),
    ],
    ids=["patches the checks", "raises on import", "claims too much", "writes garbage", "writes too little"],
)
def test_an_app_that_goes_around_its_process_gets_nothing_out(install, code, refused):
    install(code)
    reply = answer()
    assert reply.error.reason == f"[{refused}] {TEXTS[refused]}"


def test_an_app_that_takes_too_long_is_ended_with_all_that_it_started(install, tmp_path):
    mark = os.path.basename(tmp_path)
    install(LASTING.format(mark=mark, seconds=60))
    start = time.monotonic()
    assert answer(seconds=6.0).error.reason == f"[time] {TEXTS['time']}"
    assert time.monotonic() - start < 30
    time.sleep(0.5)
    running = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if readable(path)]
    assert not [command for command in running if f"lasting-{mark}".encode() in command]


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


def test_a_sandbox_stands_before_the_app(install):
    install("raise ImportError")
    reply = answer(sandbox=["/nonexistent/sandbox"])
    assert reply.error.reason == f"[keep] {TEXTS['keep']}"


@pytest.mark.parametrize("boxed", [False, True])
def test_a_sandbox_without_a_network_keeps_an_app_from_connecting(install, boxed):
    box = ["unshare", "--map-root-user", "--net", "--"]
    if boxed and subprocess.run([*box, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody have a network of their own")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        install(CONNECTING.format(port=listener.getsockname()[1]) + HONEST)
        listener.settimeout(1)
        assert answer(sandbox=box if boxed else []).has_content()
        if boxed:
            with pytest.raises(TimeoutError):
                listener.accept()
        else:
            listener.accept()[0].close()


def test_an_app_gets_no_variable_that_names_the_nodes_files(install, monkeypatch):
    monkeypatch.setenv("FL_APP_POLICY_LOG", "/secret/log")
    code = "import os\nassert not [n for n in os.environ if n in ('FL_APP_POLICY', 'FL_APP_POLICY_LOG')]\n"
    install(code + HONEST)
    monkeypatch.setattr("fl_app.enforcement.enforcer.note", lambda *_, **__: None)
    assert answer().has_content()
