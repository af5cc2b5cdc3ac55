"""The criterion as typed values, with the hash of its file."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

_FILE = Path(__file__).with_name("criterion.yaml")
_ATTACKERS = Path(__file__).with_name("attackers.yaml")


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class View(_Part):
    """What of a client the attacker sees."""

    name: str
    rounds: int
    stream: Literal["fixed", "new"]


class BenchModel(_Part):
    """A model under attack; trained without a defense for so many rounds."""

    name: str
    model: str
    trained_rounds: int


class LeakCriterion(_Part):
    """Limits and sizes of attacks."""

    above_grey: float
    best_image: float
    confidence: float
    images: int
    batch_size: int
    labels: str
    steps: int
    restarts: int
    public_images: int
    rehearsals: int
    tuning_seed: int
    report_seed: int
    views: tuple[View, ...]
    models: tuple[BenchModel, ...]
    images_of: tuple[str, ...]


class AccuracyCriterion(_Part):
    """Limit and sizes of training."""

    model: str
    images_of: str
    clients: int
    batch_size: int
    rounds: int
    lr: float
    seeds: tuple[int, ...]
    confidence: float
    least_points: float


class BytesCriterion(_Part):
    """The defense whose uplink is the limit."""

    uplink_at_most: str


class TestsCriterion(_Part):
    """Correction and level of comparisons."""

    correction: str
    level: float


class Criterion(_Part):
    """What it takes to hold."""

    version: int
    leak: LeakCriterion
    accuracy: AccuracyCriterion
    bytes: BytesCriterion
    beside: tuple[str, ...]
    tests: TestsCriterion


class BenchAttacker(_Part):
    """An attacker by its overrides."""

    name: str
    views: tuple[str, ...]
    """Views in which it has something of its own to read."""
    overrides: tuple[str, ...]
    knows: str


@lru_cache(maxsize=1)
def criterion() -> Criterion:
    """Return the criterion."""
    return Criterion.model_validate(yaml.safe_load(_FILE.read_text(encoding="utf-8")))


def criterion_hash() -> str:
    """Return the SHA-256 of the criterion's file."""
    return hashlib.sha256(_FILE.read_bytes()).hexdigest()


@lru_cache(maxsize=8)
def attackers(view: str) -> tuple[BenchAttacker, ...]:
    """Return all attackers that a defense must withstand in a view."""
    rows = yaml.safe_load(_ATTACKERS.read_text(encoding="utf-8"))
    every = [BenchAttacker.model_validate(row) for row in rows]
    return tuple(one for one in every if view in one.views)
