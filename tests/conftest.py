"""Fixtures that the whole suite shares."""

from __future__ import annotations

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fl_app.seeding import generator_for
from fl_app.types import RoundContext

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def shared_data() -> Path:
    """The real data beside the repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the shared data is not at {folder}")
    return folder


@pytest.fixture
def make_context() -> Callable[..., RoundContext]:
    def make(round: int = 1, client: int = 0, **more: object) -> RoundContext:
        return RoundContext(round, client, generator_for(0, round, client, "test"), **more)  # type: ignore[arg-type]

    return make


@pytest.fixture
def ctx(make_context: Callable[..., RoundContext]) -> RoundContext:
    return make_context()
