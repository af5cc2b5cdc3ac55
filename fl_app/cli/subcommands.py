"""Registry of ``fl-app COMMAND``, and the one way in which every command is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple, Protocol, cast

from fl_app.cli.guard import guarded


class Subcommand(NamedTuple):
    """One word after ``fl-app``, and the module that answers it."""

    module: str
    """Has a ``main(arguments)``; imported only when the word is typed."""
    summary: str


SUBCOMMANDS: Mapping[str, Subcommand] = {
    "report": Subcommand("fl_app.cli.reports", "rebuild reports of runs and compare them (fl-app-report)"),
    "attack": Subcommand("fl_app.cli.new_attack", "attack a finished run again (fl-app-attack)"),
    "audit": Subcommand("fl_app.cli.audit", "audit any Flower app (fl-app-audit)"),
    "choose": Subcommand("fl_app.cli.choose", "try defenses on your data and model, recommend one"),
    "bench": Subcommand("fl_app.cli.bench", "judge a defense by the fixed criterion, make a card"),
    "verify": Subcommand("fl_app.cli.verify", "rerun published results and compare them"),
    "ats-search": Subcommand("fl_app.cli.ats_search", "search policies for ATS (fl-app-ats-search)"),
    "simulate": Subcommand("fl_app.cli.simulation", "run any Flower app as a simulation (flower-simulation)"),
    "weights": Subcommand("attacks.metrics.lpips_weights", "get the weights of LPIPS"),
    "policy": Subcommand("fl_app.cli.policy", "check a node's policy, read its log"),
}


class Command(Protocol):
    """A module of a command."""

    def main(self, arguments: list[str] | None = None) -> None:
        """Do what the arguments ask for; without any, those of the process."""
        ...


def run_command(name: str, module: str, arguments: list[str] | None = None) -> None:
    """Import ``module`` and call its ``main`` under the name that the user typed."""
    given = sys.argv[1:] if arguments is None else arguments
    guarded(name, lambda: cast(Command, import_module(module)).main(given))
