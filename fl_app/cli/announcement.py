"""The end of a run in the terminal: its summary and the address of its report."""

from __future__ import annotations

from pathlib import Path

from fl_app.report import summary_lines


def announce(folder: Path) -> None:
    """Print how the run in ``folder`` went and where its report is."""
    print("\n".join([*summary_lines(folder), f"report: {folder.resolve() / 'report.html'}"]), flush=True)
