from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_run


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a run folder with the settings of `write_run`."""

    def make(name: str = "run", **settings: Any) -> Path:
        return write_run(tmp_path / name, **settings)

    return make
