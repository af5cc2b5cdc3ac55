"""Commands of the project, one module each; the names below are the console scripts."""

from fl_app.cli.commands import attack, main, report, simulate

__all__ = ["attack", "main", "report", "simulate"]
