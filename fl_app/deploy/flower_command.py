"""Flower's own command, told by a configuration of its own which SuperLink to talk to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_NAME = "deployment"


@dataclass(frozen=True)
class FlowerCommand:
    """``flwr`` with everything that it needs to reach one SuperLink."""

    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end and return what it wrote."""
        return subprocess.run(self._command(arguments), env=self._environment, capture_output=True, text=True)

    def show(self, *arguments: str) -> int:
        """Run it and let it write where this process does; return its exit code."""
        return subprocess.run(self._command(arguments), env=self._environment).returncode

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        # beside this interpreter, whatever the path says; the SuperLink is its last positional argument
        return [str(Path(sys.executable).parent / "flwr"), *arguments, _NAME]

    @property
    def _environment(self) -> dict[str, str]:
        return os.environ | {"FLWR_HOME": str(self.home)}


@contextmanager
def flower_command(superlink: str, root_certificates: Path) -> Iterator[FlowerCommand]:
    """Give a command for ``superlink`` (host:port), which must be certified by ``root_certificates``."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        # a TOML string in quotes is written as one of JSON
        settings = {"address": superlink, "root-certificates": str(root_certificates.resolve())}
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
        (home / "config.toml").write_text("\n".join([f"[superlink.{_NAME}]", *lines, ""]))
        yield FlowerCommand(home)
