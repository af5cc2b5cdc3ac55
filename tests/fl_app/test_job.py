import json
from pathlib import Path

import pytest
from federations import SMALL

from fl_app.job import run_job
from fl_app.overrides import split_overrides

ATTACKED = [*split_overrides(SMALL.replace("attack=none ", "")), "attack.steps=2"]


def read(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_a_defended_run_is_trained_once_more_without_its_defense(tmp_path):
    overrides = [*ATTACKED, "defense=topk", "defense.topk.inner.k=0.1"]
    folder = run_job(overrides, folder=tmp_path / "run")
    defended, baseline = read(folder), read(folder / "baseline")
    assert defended["config"]["choices"]["defense"] == "topk"
    assert baseline["config"]["choices"]["defense"] == "none"
    assert baseline["attacks"] == []
    same = ("seed", "clients", "rounds", "lr", "data", "partition", "model")
    assert [defended["config"][key] for key in same] == [baseline["config"][key] for key in same]
    assert "Without the defense, same seed" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("overrides", "sweep", "trained"),
    [
        (["defense=none"], False, False),
        (["defense=dgp"], True, False),
        (["defense=dgp", "baseline=true"], True, True),
        (["defense=dgp", "baseline=false"], False, False),
    ],
)
def test_a_baseline_is_trained_only_where_it_tells_something(tmp_path, overrides, sweep, trained):
    folder = run_job([*split_overrides(SMALL), *overrides], folder=tmp_path / "run", sweep=sweep)
    assert (folder / "baseline" / "result.json").exists() == trained


def test_a_folder_in_the_overrides_wins(tmp_path):
    wanted = tmp_path / "with space, and 'quotes'"
    overrides = [*split_overrides(SMALL), "defense=none", f'run_dir="{wanted}"']
    assert run_job(overrides, folder=tmp_path / "other") == wanted
    assert (wanted / "report.html").is_file()
