"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_rows(rows: Sequence[Sequence[str]]) -> str:
    """Write the lines of a table; a bar in a cell stays in it."""
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)
