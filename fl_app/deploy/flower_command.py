"""Flower's own command, told by a configuration of its own which SuperLink to talk to."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from fl_app.deploy.tunnel import tunnel

_NAME = "deployment"


@dataclass(frozen=True)
class FlowerCommand:
    """``flwr`` with everything that it needs to reach one SuperLink."""

    home: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end and return its output."""
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


@dataclass(frozen=True)
class Operator:
    """Certificate and key of an operator, who may start runs."""

    certificate: Path
    key: Path


@contextmanager
def flower_command(
    superlink: str, root_certificates: Path, operator: Operator | None = None
) -> Iterator[FlowerCommand]:
    """Give a command for ``superlink`` (host:port), which must be certified by ``root_certificates``.

    With an ``operator`` it goes through a `tunnel` that shows its certificate.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if operator is None:
            settings: dict[str, object] = {
                "address": superlink,
                "root-certificates": str(root_certificates.resolve()),
            }
        else:
            way = tunnel(superlink, root_certificates, operator.certificate, operator.key)
            settings = {"address": stack.enter_context(way), "insecure": True}
        # strings in quotes and truth values are written in TOML as in JSON
        lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]
        (home / "config.toml").write_text("\n".join([f"[superlink.{_NAME}]", *lines, ""]))
        yield FlowerCommand(home)


def add_superlink(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say which SuperLink a command is for, and who gives it."""
    parser.add_argument("--superlink", required=True, help="host:port")
    parser.add_argument("--root-certificates", type=Path, required=True)
    parser.add_argument("--operator", type=Path, help="the folder with operator.pem and operator.key")


def reach_superlink(args: argparse.Namespace) -> AbstractContextManager[FlowerCommand]:
    """Give the command for the SuperLink that `add_superlink`'s arguments name."""
    folder: Path | None = args.operator
    operator = None if folder is None else Operator(folder / "operator.pem", folder / "operator.key")
    return flower_command(args.superlink, args.root_certificates, operator)
