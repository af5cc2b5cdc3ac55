import json
import re
from pathlib import Path

import pytest
from cut_runs import strike
from federations import SMALL

from fl_app.config.compose import split_overrides
from fl_app.experiments import job
from fl_app.experiments.job import run_job

ATTACKED = [*split_overrides(SMALL.replace("attack=none ", "")), "attack.steps=2"]


def read(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_a_defended_run_is_trained_once_more_without_its_defense(tmp_path):
    overrides = [*ATTACKED, "defense=topk", "defense.share=0.1"]
    folder = run_job(overrides, folder=tmp_path / "run")
    defended, baseline = read(folder), read(folder / "baseline")
    assert defended["config"]["choices"]["defense"] == "topk"
    assert baseline["config"]["choices"]["defense"] == "none"
    assert baseline["attacks"] == []
    same = ("seed", "clients", "rounds", "lr", "data", "partition", "model")
    assert [defended["config"][key] for key in same] == [baseline["config"][key] for key in same]
    assert 'data-fact="baseline-accuracy"' in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("overrides", "sweep", "trained"),
    [
        (["defense=none"], False, False),
        (["defense=dgp"], True, False),
        (["defense=dgp", "baseline=true"], True, True),
        (["defense=dgp", "baseline=false"], False, False),
        (["defense=fl_std"], False, False),
        (["defense=fl_top", "baseline=false"], False, False),
    ],
)
def test_a_baseline_is_trained_only_where_it_tells_something(tmp_path, overrides, sweep, trained):
    folder = run_job([*split_overrides(SMALL), *overrides], folder=tmp_path / "run", sweep=sweep)
    assert (folder / "baseline" / "result.json").exists() == trained


@pytest.mark.parametrize("private", [[], ["dp=client", "dp.epsilon=4"]])
@pytest.mark.parametrize("defense", ["fl_std", "fl_top"])
def test_who_sends_vectors_goes_on_doing_so_in_the_baseline(tmp_path, defense, private):
    if defense == "fl_std" and not private:
        pytest.skip("is its own baseline")
    overrides = [*split_overrides(SMALL), "model=mlp", "model.hidden=[8]", f"defense={defense}", *private]
    folder = run_job(overrides, folder=tmp_path / "run")
    defended, baseline = read(folder), read(folder / "baseline")
    assert defended["config"]["choices"]["defense"] == defense
    chosen = [baseline["config"]["choices"][group] for group in ("defense", "dp", "secagg")]
    assert chosen == ["fl_std", "none", "off"]
    same = ("seed", "clients", "rounds", "lr", "data", "partition", "public", "model", "training")
    assert [defended["config"][key] for key in same] == [baseline["config"][key] for key in same]
    assert (defended["rounds"][-1]["epsilon"] is not None) == bool(private)
    assert baseline["rounds"][-1]["epsilon"] is None


@pytest.mark.parametrize(("wanted", "became"), [([], False), (["dp.secure=true"], True)])
def test_a_simulation_repeats_its_noise_unless_told_otherwise(tmp_path, wanted, became):
    overrides = [*split_overrides(SMALL), "model=mlp", "model.hidden=[8]", "defense=fl_top", "dp=client"]
    result = read(run_job([*overrides, "rounds=1", "baseline=false", *wanted], folder=tmp_path / "run"))
    assert result["config"]["dp"]["secure"] is became
    assert result["privacy"]["replayable"] is not became


def test_a_folder_in_the_overrides_wins(tmp_path):
    wanted = tmp_path / "with space, and 'quotes'"
    overrides = [*split_overrides(SMALL), "defense=none", f'run_dir="{wanted}"']
    assert run_job(overrides, folder=tmp_path / "other") == wanted
    assert (wanted / "report.html").is_file()


def test_a_baseline_that_was_interrupted_goes_on_and_completes_the_page_of_its_run(tmp_path, monkeypatch):
    overrides = [*ATTACKED, "defense=topk", "rounds=3", "checkpoint=true"]
    folder = tmp_path / "run"
    honest = job.run_app

    def interrupted_in_the_baseline(*parts, run_config, **more):
        if "attack=none" in run_config["overrides"]:
            strike(monkeypatch, 3, KeyboardInterrupt())
        return honest(*parts, run_config=run_config, **more)

    monkeypatch.setattr(job, "run_app", interrupted_in_the_baseline)
    with pytest.raises(KeyboardInterrupt, match=re.escape(f"resume={folder / 'baseline'}")):
        run_job(overrides, folder=folder)
    assert (read(folder)["status"], read(folder / "baseline")["status"]) == ("finished", "interrupted")
    monkeypatch.setattr(job, "run_app", honest)
    assert run_job([f"resume={folder / 'baseline'}"]) == folder
    assert len(read(folder / "baseline")["rounds"]) == 3
    shown = f"{100 * read(folder / 'baseline')['summary']['accuracy']:.1f} %"
    assert re.search(rf'data-fact="baseline-accuracy"[^<]*{shown}', (folder / "report.html").read_text())
