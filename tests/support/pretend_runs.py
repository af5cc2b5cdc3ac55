"""Runs on the CPU and on the pretended device, compared bit for bit; a program, for one process of its own.

    python pretend_runs.py '{"name": "overrides", …}'

prints one JSON object by name: which results were the same, and the copies between host and device.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import pretend_device
import pytest
from cut_runs import read, strike, without_pictures, without_timings, words

from fl_app.config.build import client_parts
from fl_app.experiments.job import run_job

ROUNDS = 3
_OF_A_DEVICE = ("config", "config_hash")


def run(overrides: str, device: str, folder: Path, *, cut_at: int | None = None) -> dict[str, int]:
    """Run in ``folder``, after an interruption and a resume if it is cut; return the copies of a round."""
    client_parts.cache_clear()
    before = dict(pretend_device.copies)
    every = words(f"{overrides} rounds={ROUNDS} device={device}")
    if "data=" in overrides:  # other data have none of the settings of pictures
        every = [word for word in every if word in overrides or not word.startswith("data.")]
    if cut_at is None:
        run_job(every, folder=folder)
    else:
        with pytest.MonkeyPatch.context() as patch:
            strike(patch, cut_at, RuntimeError("power cut"))
            with pytest.raises(RuntimeError, match="power cut"):
                run_job(every, folder=folder)
        client_parts.cache_clear()
        run_job([f"resume={folder}"])
    return {kind: (n - before.get(kind, 0)) // ROUNDS for kind, n in pretend_device.copies.items()}


def compare(overrides: str, home: Path) -> dict[str, Any]:
    """Run on both devices and return what agrees."""
    run(overrides, "cpu", home / "cpu")
    copies = run(overrides, pretend_device.NAME, home / "there", cut_at=3 if "resume" in home.name else None)
    here, there = (without_timings(read(home / name)) for name in ("cpu", "there"))
    models = [(home / name / "model.safetensors").read_bytes() for name in ("cpu", "there")]
    return {
        "model": models[0] == models[1],
        "rounds": here["rounds"] == there["rounds"],
        "attacks": here["attacks"] == there["attacks"],
        "others": [key for key in here if key not in _OF_A_DEVICE and here[key] != there.get(key)],
        "counted": [row["clients"] for row in there["rounds"]],
        "attacked": len(there["attacks"]),
        "failures": [f["reason"] for row in there["rounds"] for f in row["failures"]],
        "gave_up": [a["gave_up"] for a in there["attacks"] if a.get("gave_up")],
        "copies": copies,
    }


def main() -> None:
    """Compare all runs of the argument."""
    logging.disable(logging.CRITICAL)
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as home:
        without_pictures(patch)
        for name, overrides in json.loads(sys.argv[1]).items():
            try:
                found[name] = compare(overrides, Path(home) / name)
            except Exception as error:  # of any run: the others are compared all the same
                found[name] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
