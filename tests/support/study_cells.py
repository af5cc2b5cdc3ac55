"""Cells of a study whose numbers are made up, as if they had been run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_app.experiments.studies.measured import Measured
from fl_app.experiments.studies.plan import Planned
from fl_app.experiments.studies.study_file import Study, read_study
from fl_app.results import read_run

SKELETON: dict[str, Any] = {
    "paper": "dgp",
    "what": "Table 1",
    "title": "A table",
    "scale": {"cpu": ["attack=none"], "paper": []},
    "parts": {"ig": {"sweep": {"defense": ["none", "dgp"], "seed": [0, 1]}}},
}


def study(**more: Any) -> Study:
    """Return a small study with more of its nodes."""
    return read_study("own", {**SKELETON, **more})


def planned(part: str = "ig", *, adaptive: object = "both", **at: object) -> Planned:
    """Return a cell at a place; its config is not composed."""
    cell = Planned(part, {axis: str(value) for axis, value in at.items()}, [])
    attack = {"name": "ig", "adaptive": adaptive}
    config = {"choices": {"defense": at.get("defense", "none")}, "seed": at.get("seed", 0), "attack": attack}
    cell.__dict__["config"] = config
    return cell


def attack(ssim: Sequence[float | None], *, client: int = 0, **more: Any) -> dict[str, Any]:
    """Return an attack on the update of one client: an SSIM for every image."""
    entry = {"attack": "ig", "adaptive": False, "update": "defended", "round": 1, "client": client}
    return {**entry, "labels_from": "granted", "ssim": list(ssim), "notes": [], **more}


def one_each(values: Sequence[float], **more: Any) -> list[dict[str, Any]]:
    """Return attacks on as many clients, each with one image."""
    return [attack([value], client=client, **more) for client, value in enumerate(values)]


def finished(
    cell: Planned, *, attacks: Sequence[dict[str, Any]] = (), rounds: Sequence[Any] = (), **summary: float
) -> Measured:
    """Return a cell whose run has these numbers."""
    raw = {"status": "finished", "config": cell.config, "attacks": list(attacks), "summary": summary}
    raw |= {"rounds": list(rounds), "versions": {"torch": "2.13.0"}}
    folder = Path("cells") / cell.name.replace(" ", "-")
    return Measured(cell, folder, read_run(folder, raw), None)


def failed(cell: Planned, reason: str) -> Measured:
    """Return a cell that has no run."""
    return Measured(cell, Path("cells"), None, reason)
