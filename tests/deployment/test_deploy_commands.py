"""Registration, health and starting a run, against stand-ins for Flower's command and a server."""

import json
import stat
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fl_app.config.compose import ConfigError
from fl_app.deploy import run
from fl_app.deploy.flower_command import FlowerCommand, flower_command
from fl_app.deploy.health import answers
from fl_app.deploy.register import RegistrationError, register


class Scripted(FlowerCommand):
    """Says what it is told to, in turn, and remembers what it was asked."""

    def __init__(self, home, *replies):
        super().__init__(home)
        object.__setattr__(self, "replies", list(replies))
        object.__setattr__(self, "asked", [])

    def run(self, *arguments):
        self.asked.append(arguments)
        code, said = self.replies.pop(0)
        return subprocess.CompletedProcess(arguments, code, stdout=said, stderr="")

    def show(self, *arguments):
        self.asked.append(arguments)
        return 0


def test_a_key_is_registered_or_was_before_and_all_else_is_an_error(tmp_path):
    key = tmp_path / "node-0.pub"
    assert register(Scripted(tmp_path, (0, "done")), key)
    # as it is told, in a box of the terminal's width
    told = "╭─ Error ──╮\n[code: 23] Public key\nalready in use.\n╰───╯"
    assert not register(Scripted(tmp_path, (1, told)), key)
    with pytest.raises(RegistrationError, match=r"node-0\.pub was not registered: no connection"):
        register(Scripted(tmp_path, (1, "no connection")), key)


def test_flowers_command_is_told_where_the_superlink_is_and_whom_to_trust(tmp_path):
    with flower_command('host"with\\signs:8000', tmp_path / "ca.crt") as flower:
        config = tomllib.loads((flower.home / "config.toml").read_text())
        (settings,) = config["superlink"].values()
        assert settings == {"address": 'host"with\\signs:8000', "root-certificates": str(tmp_path / "ca.crt")}
        assert stat.S_IMODE(flower.home.stat().st_mode) == 0o700
    assert not flower.home.exists()


def test_what_is_asked_for_replaces_what_is_given():
    given = "clients=3 rounds=10 defense=topk"
    assert run.merge(given, "") == given
    assert run.merge(given, "defense=adgp rounds=5") == "clients=3 defense=adgp rounds=5"
    assert run.merge(given, "attack.clients=[0,1]") == f"{given} 'attack.clients=[0,1]'"


def test_wrong_overrides_never_reach_the_server():
    with pytest.raises(ConfigError, match="did you mean adgp"):
        run.merge("clients=3", "defense=adpg")


def test_overrides_reach_the_run_whatever_signs_they_hold(tmp_path):
    overrides = "data.root='/a \"b\"\\c' attack.clients=[0]"
    flower = Scripted(tmp_path, (0, 'note\n{\n "success": true,\n "run-id": 12\n}\n'))
    assert run.start(flower, tmp_path, overrides) == "12"
    (asked,) = flower.asked
    config = asked[asked.index("--run-config") + 1]
    assert tomllib.loads(Path(config).read_text()) == {"overrides": overrides}


def test_a_run_that_cannot_be_started_is_an_error_with_what_was_said(tmp_path):
    for said in ("Connection refused", json.dumps({"success": False, "error-message": "no such app"})):
        with pytest.raises(run.RunError, match=r"Connection refused|no such app"):
            run.start(Scripted(tmp_path, (1, said)), tmp_path, "")


@pytest.mark.parametrize(
    ("end", "code"),
    [("finished:completed", 0), ("finished:failed", 1), ("finished:stopped", 1)],
)
def test_the_exit_code_says_whether_the_run_finished(end, code, tmp_path, monkeypatch, capsys):
    def listed(status):
        return (0, json.dumps({"success": True, "runs": [{"status": status}]}))

    flower = Scripted(tmp_path, (0, '{"success": true, "run-id": 7}'), listed("running"), listed(end))

    class Given:
        def __init__(self, *arguments): ...
        def __enter__(self):
            return flower

        def __exit__(self, *error): ...

    monkeypatch.setattr(run, "reach_superlink", Given)
    monkeypatch.setattr(run, "_POLL_SECONDS", 0.0)
    words = ["--app", ".", "--superlink", "a:1", "--root-certificates", "ca.crt", 'overrides="rounds=5"']
    monkeypatch.setattr(sys, "argv", ["run", *words])
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == code
    assert end in capsys.readouterr().out
    assert ("log", "7", "--stream") in flower.asked


def test_only_overrides_can_be_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["run", "--app=.", "--superlink=a:1", "--root-certificates=c", "rounds=5"]
    )
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == 2
    assert "expected overrides=" in capsys.readouterr().err


class Answering(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()

    def log_message(self, *arguments): ...


def test_health_is_an_answer_and_nothing_else():
    server = HTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        assert answers(f"{url}/health") is None
        assert "503" in answers(f"{url}/other")
    finally:
        server.shutdown()
        server.server_close()
    assert "refused" in answers(f"{url}/health")
