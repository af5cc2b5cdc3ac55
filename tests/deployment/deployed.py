"""A federation of docker-compose.yml as processes, for tests that train with it and disturb it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from compose_harness import Harness

from fl_app.deploy.flower_command import Operator, flower_command

BIN = Path(sys.executable).parent
NODES = ("supernode-0", "supernode-1", "supernode-2")
SMALL = "data.train_per_class=8 data.test_per_class=4 batch_size=8 threads=1"
PATIENCE = 900.0
"""Seconds after which something has not happened: many more than it takes, for machines that are busy."""

needs_flower = pytest.mark.skipif(
    not (BIN / "flower-superlink").exists(), reason="Flower's commands are not beside this interpreter"
)


def harness(folder: Path, file: str = "docker-compose.yml", **more: Any) -> Harness:
    """Return the services of a compose file; names in capitals are for it, all others for the harness."""
    repository = Path(__file__).resolve().parents[2]
    cache = Path(os.environ.get("FL_APP_CACHE", repository / ".cache"))
    variables = {name: more.pop(name) for name in list(more) if name.isupper()}
    return Harness(
        repository / file,
        folder,
        variables={"FL_APP_ALLOW_AUDIT": "1"} | variables,
        content={"/app/project": repository, "/app/cache": cache},
        **more,
    )


def operator(federation: Harness) -> Operator:
    """Return the certificate of whoever may start runs."""
    folder = federation.volume("operator")
    return Operator(folder / "operator.pem", folder / "operator.key")


def nodes(federation: Harness) -> dict[str, str]:
    """How the SuperLink sees its nodes, by their ids."""
    with flower_command(
        f"{federation.address('superlink')}:8000", federation.volume("trust") / "ca.crt", operator(federation)
    ) as flower:
        answer = json.loads(flower.run("supernode", "list", "--format", "json").stdout)
    return {node["node-id"]: node["status"] for node in answer["nodes"]}


def until(true: Callable[[], bool], federation: Harness, who: str, seconds: float = PATIENCE) -> None:
    """Wait for something to be true; if it does not become so, show what ``who`` wrote."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, federation.log(who)
        time.sleep(0.2)


def joined(federation: Harness, name: str) -> int:
    """How often a node was let in."""
    return federation.log(name).count("SuperNode ID")


def orders(federation: Harness, name: str) -> int:
    """How many orders to train a node has got, over all runs."""
    return federation.log(name).count("Receiving: train message")


class Training:
    """A run that goes on while the test does other things."""

    def __init__(self, federation: Harness, overrides: str, *, patience: float = 3000.0) -> None:
        self._federation = federation
        self._before = {name: orders(federation, name) for name in NODES}
        self._done: subprocess.CompletedProcess[str] | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(overrides, patience), daemon=True)
        self._thread.start()

    def until_order(self, name: str, number: int) -> None:
        """Wait until a node has got that many orders of this run."""

        def got_it() -> bool:
            assert self._thread.is_alive(), self.end()[1]
            return orders(self._federation, name) >= self._before[name] + number

        until(got_it, self._federation, name)

    def until_rows(self, folder: str, number: int) -> None:
        """Wait until that many rounds are in the result of a run's folder."""

        def there_they_are() -> bool:
            assert self._thread.is_alive(), self.end()[1]
            return len(rows_of(self._federation, folder)) >= number

        until(there_they_are, self._federation, "superlink")

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was said."""
        self._thread.join()
        assert self._done is not None, f"the run was not followed to its end: {self._error}"
        return self._done.returncode, self._done.stdout + self._done.stderr

    def _run(self, overrides: str, patience: float) -> None:
        try:
            self._done = self._federation.run("runner", f'overrides="{overrides}"', timeout=patience)
        except Exception as error:  # to be shown in the thread that waits
            self._error = error


def result_of(federation: Harness, folder: str) -> Mapping[str, Any]:
    """Return the result in a run's folder; an empty one if there is none yet."""
    path = federation.volume("runs") / folder / "result.json"
    return json.loads(path.read_text()) if path.exists() else {}


def rows_of(federation: Harness, folder: str) -> list[dict[str, Any]]:
    """Return the rounds that a run has finished."""
    return result_of(federation, folder).get("rounds", [])


def run(federation: Harness, overrides: str) -> dict[str, Any]:
    """Run the app to its end and return the result."""
    code, said = Training(federation, overrides).end()
    assert code == 0, said
    # a stream that was taken up again says some lines twice, and parts of lines
    (report,) = set(re.findall(r"report: (\S+/report\.html)\s*$", said, re.MULTILINE))
    folder = federation.volume("runs").parent / Path(report).parent
    assert (folder / "report.html").is_file()
    return json.loads((folder / "result.json").read_text())
