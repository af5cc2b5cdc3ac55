from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image
from run_folders import write_run


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a run folder with the settings of `write_run`."""

    def make(name: str = "run", **settings: Any) -> Path:
        return write_run(tmp_path / name, **settings)

    return make


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
