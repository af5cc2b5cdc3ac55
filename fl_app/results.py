"""A run's folder and its result.json, written as the run goes on, so that nothing is lost."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fl_app.strategies.record import RoundRecord

_SAVE_EVERY_SECONDS = 5.0
_PACKAGES = ("flwr", "torch", "torchvision", "opacus", "numpy", "lpips", "hydra-core", "zstandard", "fl-app")


class Results:
    """Collects rows and writes them to ``folder/result.json``."""

    def __init__(self, folder: Path, config: Mapping[str, Any], model: Mapping[str, int]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        shown = {key: value for key, value in config.items() if key != "run_dir"}
        self.content: dict[str, Any] = {
            "status": "running",
            "error": None,
            "config": shown,
            "versions": _versions(),
            "model": dict(model),
            "rounds": [],
            "summary": {},
            "attacks": [],
            "notes": [],
        }
        self._start = time.perf_counter()
        self._saved = 0.0
        (folder / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
        self.save()

    @classmethod
    def reopen(cls, folder: Path) -> Results:
        """Go on with a run that has ended; its config and rounds stay as they are."""
        path = folder / "result.json"
        try:
            content = json.loads(path.read_text())
            known = isinstance(content["attacks"], list) and isinstance(content["notes"], list)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: cannot be read: {error}") from error
        if not known:
            raise ValueError(f"{path}: is not the result of a run")
        results = cls.__new__(cls)
        results.folder, results.content = folder, content
        results._start, results._saved = time.perf_counter() - content["summary"].get("seconds", 0.0), 0.0
        return results

    def add_round(
        self, record: RoundRecord, *, accuracy: float | None, loss: float | None, seconds: float
    ) -> None:
        """Add a round's row."""
        row = {"round": record.round, "accuracy": accuracy, "loss": loss} | asdict(record)
        self.content["rounds"].append(row | {"seconds": seconds})
        if time.monotonic() - self._saved > _SAVE_EVERY_SECONDS:
            self.save()

    def finish(self, status: str, error: str | None = None) -> None:
        """Say how the run ended, and write everything."""
        self.content["status"], self.content["error"] = status, error
        self.save()

    def save(self) -> None:
        """Write result.json at once or not at all."""
        self.content["summary"] = self._summary()
        path = self.folder / "result.json"
        draft = path.with_suffix(".json.part")
        draft.write_text(json.dumps(_plain(self.content), indent=1, allow_nan=False) + "\n")
        os.replace(draft, path)
        self._saved = time.monotonic()

    def _summary(self) -> dict[str, Any]:
        rounds = self.content["rounds"]
        accuracies = [row["accuracy"] for row in rounds if row["accuracy"] is not None]
        totals = {
            key: sum(row[key] for row in rounds)
            for key in (
                "uplink_bytes",
                "downlink_bytes",
                "uplink_blob_bytes",
                "downlink_blob_bytes",
                "dense_bytes",
            )
        }
        epsilon = rounds[-1]["epsilon"] if rounds else None
        return {
            "accuracy": accuracies[-1] if accuracies else None,
            "best_accuracy": max(accuracies, default=None),
            **totals,
            "epsilon": epsilon,
            "epsilon_server": rounds[-1]["epsilon_server"] if rounds else None,
            # dp_sgd alone accounts so far, and it protects records
            "epsilon_unit": None if epsilon is None else "record",
            "seconds": time.perf_counter() - self._start,
        }


def run_folder(wanted: Path | str | None, name: str) -> Path:
    """Return the folder that was asked for, else a new one below runs/, named by the time and ``name``."""
    if wanted:
        return Path(wanted)
    day = Path("runs") / datetime.now().strftime("%Y-%m-%d")
    stem = f"{datetime.now():%H-%M-%S}-{name}"
    for attempt in range(1, 1000):
        folder = day / (stem if attempt == 1 else f"{stem}-{attempt}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"run_folder: no free name for {stem} in {day}")


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # an app bundle runs without being installed
            continue
    return found


def _plain(value: Any) -> Any:
    """Return ``value`` as JSON knows it; a number that is none becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
