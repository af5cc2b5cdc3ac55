"""A run's folder and its result.json, written as the run goes on, so that nothing is lost."""

from __future__ import annotations

import json
import logging
import platform
import time
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fl_app.config.hash import hash_config
from fl_app.console.words import foreign
from fl_app.results import (
    RESULT,
    Attack,
    Model,
    ResultError,
    Resumed,
    Round,
    Run,
    Summary,
    load_run,
    summarise,
    write_json,
    write_text,
)
from fl_app.storage.tree_file import sync
from fl_app.training import Evaluation
from fl_app.transforms import residual_bound

logger = logging.getLogger(__name__)

RUNS = "runs"
"""Folder below which a run without one of its own makes one."""
_SAVE_EVERY_SECONDS = 5.0
_PACKAGES = ("flwr", "torch", "torchvision", "opacus", "numpy", "lpips", "hydra-core", "zstandard", "fl-app")


class Results:
    """Fills the rows of a run and writes them to ``folder/result.json``."""

    def __init__(self, folder: Path, config: Mapping[str, Any], model: Mapping[str, int]) -> None:
        shown = {key: value for key, value in config.items() if key not in ("run_dir", "resume")}
        self.run = Run(
            status="running",
            config=shown,
            config_hash=hash_config(config),
            versions=versions(),
            model=Model(**model),
        ).lies_in(folder)
        self._start = time.perf_counter()
        self._saved = 0.0
        self._config = dict(config)

    def begin(self) -> None:
        """Write the config and the first result; until now nothing is on the disk."""
        write_text(self.folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(self._config)))
        self.save()

    @classmethod
    def reopen(cls, folder: Path) -> Results:
        """Reopen a finished run; its config and rounds do not change."""
        results = cls.__new__(cls)
        results.run = load_run(folder, exact=True)
        results._start = time.perf_counter() - (results.run.summary.seconds or 0.0)
        results._saved = 0.0
        return results

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.run.folder

    @property
    def seconds(self) -> float:
        """The time that the run has taken so far, before it was cut short and since it was resumed."""
        return time.perf_counter() - self._start

    def resume(self, rows: list[Round], seconds: float, resumed: list[Resumed]) -> None:
        """Take over the rounds from before the interruption."""
        self.run.rounds, self.run.resumed = rows, resumed
        self._start -= seconds

    def add_round(
        self,
        record: Round,
        *,
        tested: Evaluation | None,
        validated: Evaluation | None,
        seconds: float,
    ) -> None:
        """Add a round's row; scores of a round that was not evaluated are null."""
        scores = _scores(tested, validated) | {"seconds": seconds}
        self.run.rounds.append(record.model_copy(update=scores, deep=True))
        if time.monotonic() - self._saved > _SAVE_EVERY_SECONDS:
            self.save()

    def score_last_round(self, tested: Evaluation, validated: Evaluation | None) -> None:
        """Add scores to the last row, which became the final one."""
        self.run.rounds[-1] = self.run.rounds[-1].model_copy(update=_scores(tested, validated))

    def add_attacks(self, entries: list[Attack]) -> None:
        """Add the results of attacks, each in place of an earlier one with the same settings."""
        new = {_same(entry) for entry in entries}
        self.run.attacks = [*(entry for entry in self.run.attacks if _same(entry) not in new), *entries]

    def finish(self, status: str, error: str | None = None) -> None:
        """Set the status at the end of the run, and write everything."""
        # it may quote a client
        self.run.status, self.run.error = status, None if error is None else foreign(error)
        self.save()
        for path in (self.folder / RESULT, self.folder):
            sync(path)  # a power cut cannot undo it

    def fail(self, status: str, error: str) -> None:
        """Set the status of a run that ends with an error, as far as the disk still allows it.

        A full disk keeps the earlier file whole; it takes the status and the error in place of blank space.
        """
        try:
            self.finish(status, error)
        except Exception as second:  # nothing may hide the first error
            logger.error("%s cannot be written: %s", self.folder / RESULT, second)
            self._mark_in_place(status, error)

    def _mark_in_place(self, status: str, error: str) -> None:
        path = self.folder / RESULT
        try:
            old = path.read_bytes()
            content = json.loads(old) | {"status": status, "error": foreign(error)}
            # without indentation it is shorter: no new block of the disk is needed
            new = json.dumps(content, separators=(",", ":")).encode() + b"\n"
            if len(new) > len(old):
                return
            with path.open("r+b") as stream:
                stream.write(new.ljust(len(old) - 1) + b"\n")
        except Exception as third:
            logger.error("its status stays %s: %s", "running", third)

    def save(self) -> None:
        """Write result.json at once or not at all."""
        self.run.summary = self._summary()
        write_json(self.folder / RESULT, self.run.as_json())
        self._saved = time.monotonic()

    def _summary(self) -> Summary:
        summary = summarise(self.run.rounds)
        summary.residual_bound = _residual_bound(self.run.rounds)
        if summary.epsilon is not None:
            privacy = self.run.privacy
            summary.epsilon_unit = "record" if privacy is None else privacy.unit
            summary.epsilon_adjacency = "add or remove one record" if privacy is None else privacy.adjacency
        summary.seconds = self.seconds
        return summary


def _same(entry: Attack) -> tuple[object, ...]:
    """Return the values in which a new entry agrees with the one whose place it takes."""
    settings = entry.settings_hash
    return entry.name, entry.adaptive, entry.update, entry.round, entry.client, entry.labels_from, settings


def find_run(folder: Path) -> Run | None:
    """Return the run in ``folder``; None if it is missing or unreadable."""
    try:
        return load_run(folder)
    except ResultError:
        return None


def _residual_bound(rounds: list[Round]) -> float | None:
    """Return the bound of the square of a residual, by the largest gradient and share so far."""
    known = [
        (row.pruned_share or 0.0, row.gradient_norm)
        for row in rounds
        if row.gradient_norm is not None and row.residual_norm is not None
    ]
    if not known:
        return None
    share = max(share for share, _ in known)
    try:
        return residual_bound(share, max(norm for _, norm in known)) if share < 1 else None
    except (ArithmeticError, ValueError):  # clients report both
        return None


def _scores(tested: Evaluation | None, validated: Evaluation | None) -> dict[str, float | None]:
    scores = {field.name: getattr(tested, field.name, None) for field in fields(Evaluation)}
    return scores | {"validation_accuracy": None if validated is None else validated.accuracy}


def run_folder(wanted: Path | str | None, name: str) -> Path:
    """Return the folder that was asked for, else a new one below runs/, named by the time and ``name``."""
    if wanted:
        return Path(wanted)
    day = Path(RUNS) / datetime.now().strftime("%Y-%m-%d")
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
