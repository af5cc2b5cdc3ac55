"""The end of a run in the terminal: its summary and the address of its report."""

from __future__ import annotations

from pathlib import Path

from fl_app.console.streams import say
from fl_app.console.words import printable
from fl_app.report import summary_lines


def announce(folder: Path) -> None:
    """Print the summary of the run in ``folder`` and the address of its report."""
    lines = [*summary_lines(folder), f"report: {folder.resolve() / 'report.html'}"]
    say("\n".join(map(printable, lines)))
