"""A run's folder and its result.json, written as the run goes on, so that nothing is lost."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fl_app.config.hash import hash_config
from fl_app.strategies.record import RoundRecord
from fl_app.training import Evaluation
from fl_app.transforms import residual_bound

_SAVE_EVERY_SECONDS = 5.0
_PACKAGES = ("flwr", "torch", "torchvision", "opacus", "numpy", "lpips", "hydra-core", "zstandard", "fl-app")


class Results:
    """Collects rows and writes them to ``folder/result.json``."""

    def __init__(self, folder: Path, config: Mapping[str, Any], model: Mapping[str, int]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        shown = {key: value for key, value in config.items() if key not in ("run_dir", "resume")}
        self.content: dict[str, Any] = {
            "status": "running",
            "error": None,
            "config": shown,
            "config_hash": hash_config(config),
            "versions": versions(),
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
            rows = [*content["rounds"], *content["attacks"], content["summary"]]
            known = all(isinstance(row, dict) for row in rows) and isinstance(content["notes"], list)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: cannot be read: {error}") from error
        if not known:
            raise ValueError(f"{path}: is not the result of a run")
        results = cls.__new__(cls)
        results.folder, results.content = folder, content
        spent = content["summary"].get("seconds", 0.0)
        results._start, results._saved = (
            time.perf_counter() - (spent if isinstance(spent, float) else 0.0),
            0.0,
        )
        return results

    @property
    def seconds(self) -> float:
        """How long the run has taken so far, before it was cut short and since it was resumed."""
        return time.perf_counter() - self._start

    def resume(self, rows: list[dict[str, Any]], seconds: float, resumed: list[dict[str, Any]]) -> None:
        """Take over the rounds of before the run was cut short."""
        self.content["rounds"], self.content["resumed"] = rows, resumed
        self._start -= seconds
        self.save()

    def add_round(
        self,
        record: RoundRecord,
        *,
        tested: Evaluation | None,
        validated: Evaluation | None,
        seconds: float,
    ) -> None:
        """Add a round's row; what was not evaluated is null."""
        row = {"round": record.round} | _scores(tested, validated) | asdict(record)
        self.content["rounds"].append(row | {"seconds": seconds})
        if time.monotonic() - self._saved > _SAVE_EVERY_SECONDS:
            self.save()

    def score_last_round(self, tested: Evaluation, validated: Evaluation | None) -> None:
        """Add scores to the last row: it turned out to be the last one."""
        self.content["rounds"][-1] |= _scores(tested, validated)

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
        evaluated = [row for row in rounds if row["accuracy"] is not None]
        last = evaluated[-1] if evaluated else {}
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
            # a run that is attacked again may be older than some of the scores
            **{key: last.get(key) for key in ("accuracy", "balanced_accuracy", "auroc", "wer")},
            **_best(evaluated),
            **totals,
            "residual_bound": _residual_bound(rounds),
            "epsilon": epsilon,
            "epsilon_server": rounds[-1]["epsilon_server"] if rounds else None,
            "epsilon_unit": None
            if epsilon is None
            else self.content.get("privacy", {}).get("unit", "record"),
            "seconds": self.seconds,
        }


def read_result(folder: Path) -> dict[str, Any]:
    """Return what ``folder``'s result.json says; nothing if there is none, or not one that can be read."""
    try:
        return dict(json.loads((folder / "result.json").read_text()))
    except (OSError, ValueError, TypeError, RecursionError):  # none, not to its end, or nobody's
        return {}


def _residual_bound(rounds: list[dict[str, Any]]) -> float | None:
    """Return what the square of a residual may reach, by the largest gradient and share so far."""
    known = [
        row for row in rounds if row.get("gradient_norm") is not None and row["residual_norm"] is not None
    ]
    if not known:
        return None
    share = max(row["pruned_share"] for row in known)
    return residual_bound(share, max(row["gradient_norm"] for row in known)) if share < 1 else None


def _best(evaluated: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the test accuracy of the best round, the first one of equals, and what chose the round.

    Chosen by the test samples themselves, it is the highest of many draws, so rather too good.
    """
    if not evaluated:
        return {"best_accuracy": None, "best_round": None, "best_chosen_by": None}
    validated = evaluated[0].get("validation_accuracy") is not None
    best = max(evaluated, key=lambda row: row["validation_accuracy" if validated else "accuracy"])
    return {
        "best_accuracy": best["accuracy"],
        "best_round": best["round"],
        "best_chosen_by": "validation" if validated else "test",
    }


def _scores(tested: Evaluation | None, validated: Evaluation | None) -> dict[str, float | None]:
    scores = {field.name: getattr(tested, field.name, None) for field in fields(Evaluation)}
    return scores | {"validation_accuracy": None if validated is None else validated.accuracy}


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


def versions() -> dict[str, str]:
    """Return the versions of everything that a run's numbers may depend on."""
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
