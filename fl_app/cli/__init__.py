"""Commands of the project, one module each; the functions below are the console scripts.

A command's module is imported when the command is called: ``fl-app --help`` needs neither
torch nor Flower.
"""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from fl_app.cli.subcommands import run_command

__all__ = ["attack", "audit_app", "main", "report", "simulate"]


def main() -> None:
    """Run ``fl-app key=value …`` or ``fl-app COMMAND …``."""
    run_command("fl-app", "fl_app.cli.front_door")


def simulate() -> None:
    """Run ``flower-simulation --app FOLDER``: any Flower app, in this process or on Ray."""
    run_command("flower-simulation", "fl_app.cli.simulation")


def report() -> None:
    """Run ``fl-app-report DIR…``: rebuild reports, and compare when there are several runs."""
    run_command("fl-app-report", "fl_app.cli.reports")


def attack() -> None:
    """Run ``fl-app-attack RUN attack=…``: attack a finished run again, without training."""
    run_command("fl-app-attack", "fl_app.cli.new_attack")


def audit_app() -> None:
    """Run ``fl-app-audit --app FOLDER``: the leak and the claims of any Flower app."""
    run_command("fl-app-audit", "fl_app.cli.audit")
