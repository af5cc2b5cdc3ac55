"""Runs that are cut short by a made-up power cut, and the comparison of what they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from federations import SMALL
from safetensors.torch import load_file

from fl_app.config.compose import split_overrides
from fl_app.experiments.job import run_job
from fl_app.running import federation, vector_facts
from fl_app.running.result import Results

TINY = f"{SMALL} clients=3 data.size=12 rounds=5 evaluate_every=2 baseline=false checkpoint=true"
MLP = "model=mlp model.hidden=[8]"


def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports take longer than these runs, and are not what is cut short here."""

    def write_report(folder: Path) -> Path:
        (folder / "report.html").write_text("")
        return folder / "report.html"

    monkeypatch.setattr(federation, "write_report", write_report)
    monkeypatch.setattr(federation, "plot_partition", lambda *_, **__: None)
    monkeypatch.setattr(vector_facts, "save_layers", lambda *_: None)


def words(overrides: str) -> list[str]:
    return split_overrides(f"{TINY} {overrides}")


def strike(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
    """Let the round ``at`` end in an error before its row is written, once."""
    honest = Results.add_round

    def add_round(self, record, **scores):
        if record.round == at:
            monkeypatch.setattr(Results, "add_round", honest)
            raise error
        honest(self, record, **scores)

    monkeypatch.setattr(Results, "add_round", add_round)


def without_timings(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: without_timings(item) for key, item in value.items() if key not in ("seconds", "resumed")
        }
    return [without_timings(item) for item in value] if isinstance(value, list) else value


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def assert_same(one: Path, other: Path) -> None:
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert without_timings(read(one)) == without_timings(read(other))
    files = [sorted((folder / "observations").glob("*.safetensors")) for folder in (one, other)]
    assert [path.name for path in files[0]] == [path.name for path in files[1]]
    for left, right in zip(*files, strict=True):
        left, right = (load_file(path) for path in (left, right))
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


def interrupted(overrides: str, folder: Path, monkeypatch: pytest.MonkeyPatch, at: int = 4) -> None:
    with monkeypatch.context() as patch:
        strike(patch, at, RuntimeError("power cut"))
        with pytest.raises(RuntimeError, match="power cut"):
            run_job(words(overrides), folder=folder)
    assert (folder / "checkpoint" / "state").is_file()


def strike_defense(monkeypatch: pytest.MonkeyPatch, error: BaseException, *, defense: str) -> None:
    """Let the second round of the runs with this defense end in ``error``."""
    honest = Results.add_round

    def add_round(self, record, **scores):
        if record.round == 2 and self.run.config["choices"]["defense"] == defense:
            raise error
        honest(self, record, **scores)

    monkeypatch.setattr(Results, "add_round", add_round)
