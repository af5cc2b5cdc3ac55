"""The same app on Flower's Ray runtime gives what it gives in-process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

COMMON = [
    "clients=3",
    "data.train_per_class=8",
    "data.test_per_class=4",
    "batch_size=4",
    "attack=none",
    "threads=1",
    "evaluate_every=100",
]


def run(folder: Path, *overrides: str) -> dict[str, torch.Tensor]:
    subprocess.run(
        [sys.executable, "-m", "fl_app", *COMMON, *overrides, f"hydra.run.dir={folder}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=400,
        cwd=folder.parent,
    )
    assert json.loads((folder / "result.json").read_text())["status"] == "finished"
    return load_file(folder / "model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [["defense=none", "rounds=5"], ["defense=dgp", "rounds=1"]], ids=" ".join
)
def test_ray_and_inline_agree(tmp_path, overrides):
    inline = run(tmp_path / "inline", *overrides, "engine=inline")
    ray = run(tmp_path / "ray", *overrides, "engine=ray")
    torch.testing.assert_close(ray, inline, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["dgp", "adgp"])
def test_client_state_survives_on_ray(tmp_path, defense):
    """Ray pickles every context: with error feedback lost, later rounds would drift apart."""
    overrides = [f"defense={defense}", "rounds=4"]
    inline = run(tmp_path / "inline", *overrides, "engine=inline")
    ray = run(tmp_path / "ray", *overrides, "engine=ray")
    moved = max(float((inline[name] - ray[name]).abs().max()) for name in inline)
    assert moved < 1e-2
    rows = [json.loads((tmp_path / e / "result.json").read_text())["rounds"] for e in ("inline", "ray")]
    residuals = [[row["residual_norm"] for row in each] for each in rows]
    assert residuals[1] == pytest.approx(residuals[0], rel=1e-3)
