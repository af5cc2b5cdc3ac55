"""Fixtures for tests of whole runs and their pages."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image


@pytest.fixture
def quick_charts(monkeypatch) -> None:
    """Charts are composed but not rendered: for tests that look at the page's words."""
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, format="PNG")

    def save(self: Figure, target: Any, **_: Any) -> None:
        target.write(buffer.getvalue()) if hasattr(target, "write") else Path(target).write_bytes(
            buffer.getvalue()
        )

    monkeypatch.setattr(Figure, "savefig", save)
