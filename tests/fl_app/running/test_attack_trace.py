"""A run that keeps snapshots of a search: scored afterwards, drawn in the report, and as it was without."""

import json
import logging

import pytest
from federations import SMALL
from PIL import Image

from fl_app.client_app import app
from fl_app.flower import InlineGrid
from fl_app.running.federation import run_federation

SEARCH = "model=lenet_sigmoid attack=dlg attack.steps=6 attack.adaptive=false rounds=1 attack.clients=[1]"
LAYERS = ("conv1", "conv2", "conv3", "output")


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def attacked(folder, overrides):
    text = f"{SMALL} {SEARCH} {overrides} run_dir={folder}"
    run_federation(InlineGrid(app, 5, run_config={"overrides": text}), text)
    return json.loads((folder / "result.json").read_text())["attacks"]


def test_snapshots_are_scored_from_the_start_to_the_result(tmp_path):
    entries = attacked(tmp_path, "defense=prune defense.rate=0.5 attack.trace=9 audit.mse_below=0.2")
    assert [entry["update"] for entry in entries] == ["defended", "undefended"]
    for entry in entries:
        assert [point["iteration"] for point in entry["trace"]] == list(range(7))
        first, last = entry["trace"][0], entry["trace"][-1]
        assert last["objective"] < first["objective"]
        assert last["mse"] == pytest.approx(entry["mse"][0], rel=1e-3)
        assert set(first["layers"]) == {f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")}
        close = [point["iteration"] for point in entry["trace"] if point["mse"] < 0.2]
        assert entry["iterations_mse"] == (close[0] if close else None)
        assert entry["iterations"] is None  # 1e-8 takes more steps
        with Image.open(tmp_path / entry["trace_images"]) as strip:
            assert strip.size == (7 * 32, 32)
    # half of the gradient was set to zero, the smaller half: it has less than half of the square
    assert 0 < entries[0]["update_distance"] < 0.5**0.5
    assert entries[1]["update_distance"] == 0
    assert "How the searches went" in (tmp_path / "report.html").read_text()


def test_nothing_is_kept_by_default_and_the_result_is_the_same(tmp_path):
    plain = attacked(tmp_path / "plain", "defense=none")
    traced = attacked(tmp_path / "traced", "defense=none attack.trace=3")
    assert not any("trace" in entry for entry in plain)
    assert [entry["mse"] for entry in plain] == [entry["mse"] for entry in traced]
    assert "How the searches went" not in (tmp_path / "plain" / "report.html").read_text()
