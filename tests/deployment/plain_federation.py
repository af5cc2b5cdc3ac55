"""A SuperLink and SuperNodes as processes, without certificates, around any app."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from deployed import BIN

SUPERNODE = (str(BIN / "flower-supernode"),)
_HERE = ("--host", "127.0.0.1")


class PlainFederation:
    """The processes of one federation; each writes a log of its name."""

    def __init__(self, folder: Path, app: Path) -> None:
        self.folder, self.app = folder, app
        self._port = _free_port()
        self._nodes: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n'
            f'[superlink.here]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n'
        )
        self._environment: Mapping[str, str] = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        quiet = "--disable-runtime-dependency-installation"
        link = (str(BIN / "flower-superlink"), "--insecure", *_HERE, "--port", str(self._port), quiet)
        self._begin("link", *link)

    def add_node(self, name: str, *options: str, command: tuple[str, ...] = SUPERNODE) -> None:
        """Start a node."""
        where = ("--superlink", f"127.0.0.1:{self._port}", *_HERE, "--port", str(_free_port()))
        self._nodes.append(name)
        self._begin(name, *command, "--insecure", *where, *options)

    def wait_for_nodes(self, seconds: float = 120) -> None:
        """Wait until all nodes were let in."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all("SuperNode ID" in self.log(n) for n in self._nodes):
            time.sleep(0.5)

    def log(self, name: str) -> str:
        """Return what a process wrote so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def run(self, config: str = "") -> str:
        """Run the app to its end; return what was said."""
        command = [str(BIN / "flwr"), "run", str(self.app), "here", "--stream"]
        if config:
            command += ["-c", config]
        done = subprocess.run(
            command, env=self._environment, capture_output=True, text=True, timeout=500, check=False
        )
        return done.stdout + done.stderr

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def _begin(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, env=self._environment, stdout=log, stderr=subprocess.STDOUT)
            )


@contextmanager
def plain_federation(folder: Path, project: str, code: str) -> Iterator[PlainFederation]:
    """Start a SuperLink for the app ``foreign`` of these two files; stop all processes at the end."""
    app = folder / "foreign"
    app.mkdir()
    (app / "pyproject.toml").write_text(project)
    (app / "foreign.py").write_text(code)
    federation = PlainFederation(folder, app)
    try:
        yield federation
    finally:
        federation.stop()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
