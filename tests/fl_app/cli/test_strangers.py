"""Code that is not in this repository: one's own modules and YAML files, through the installed commands."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fl_app.cli.own_code import search_in
from fl_app.config.compose import ConfigError, compose, join_overrides
from fl_app.config.trust import NOBODY, WHOLE, Trust, compose_sent

BIN = Path(sys.executable).parent
QUICK = [
    "data.train_per_class=8",
    "data.test_per_class=4",
    "clients=2",
    "batch_size=4",
    "rounds=1",
    "threads=1",
]
MODULE = """
from fl_app.transforms import stateless

def halve(times=1):
    return stateless(lambda update, ctx: {name: g / 2**times for name, g in update.items()})
"""

needs_install = pytest.mark.skipif(
    not (BIN / "fl-app").exists(), reason="the package is not installed beside this interpreter"
)


@pytest.fixture
def lab(tmp_path) -> Path:
    """A folder with a module and a YAML file of one's own."""
    (tmp_path / "lab.py").write_text(MODULE)
    (tmp_path / "own" / "defense").mkdir(parents=True)
    (tmp_path / "own" / "defense" / "halved.yaml").write_text("_target_: lab.halve\ntimes: 2\n")
    return tmp_path


def run(folder: Path, *command: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == expect, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def results(folder: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/*/*/result.json"))]


@needs_install
def test_examples_that_were_copied_run_together(repository, tmp_path):
    mine = tmp_path / "mine"
    shutil.copytree(repository / "examples", mine, ignore=shutil.ignore_patterns("__pycache__"))
    groups = ("defense", "attack", "strategy", "model", "data")
    chosen = [f"{group}=my_{group}" for group in groups]
    run(mine, "fl-app", "--config-dir", "conf", *chosen, "clients=2", "batch_size=4", "rounds=1", "threads=1")
    (result,) = results(mine)
    assert result["status"] == "finished"
    assert {f"{group}={result['config']['choices'][group]}" for group in groups} == set(chosen)
    assert {attack["attack"] for attack in result["attacks"]} == {"my_attack"}
    (baseline,) = mine.glob("runs/*/*/baseline/result.json")
    undefended = json.loads(baseline.read_text())["config"]["choices"]
    assert (undefended["defense"], undefended["strategy"]) == ("none", "my_strategy")


@needs_install
def test_a_module_beside_the_user_is_found_and_named_in_the_result_and_the_folder(lab):
    run(lab, "fl-app", "defense=none", "defense._target_=lab.halve", "attack=none", "baseline=false", *QUICK)
    (path,) = lab.glob("runs/*/*/result.json")
    assert json.loads(path.read_text())["config"]["choices"]["defense"] == "lab.halve"
    assert path.parent.name.endswith("-lab.halve")


@needs_install
def test_a_sweep_goes_over_ones_own_choices(lab):
    run(lab, "fl-app", "-m", "--config-dir", "own", "defense=none,halved", "attack=none", "jobs=2", *QUICK)
    chosen = [result["config"]["choices"]["defense"] for result in results(lab / "multirun")]
    assert sorted(chosen) == ["halved", "none"]


@needs_install
def test_flower_simulation_takes_the_folder_too(lab, repository):
    words = " ".join(["defense=halved", "attack=none", "baseline=false", *QUICK])
    app = ["--app", str(repository), "--run-config", f'overrides="{words}"']
    run(lab, "flower-simulation", "--config-dir", "own", *app)
    (result,) = results(lab)
    assert result["config"]["choices"]["defense"] == "halved"
    assert result["config"]["defense"]["times"] == 2


def test_a_folder_of_choices_is_named_among_those_that_there_are(lab):
    searched = search_in(str(lab / "own"))
    assert compose(join_overrides([*searched, "defense=halved", "defense.times=3"])).defense.times == 3
    with pytest.raises(ConfigError, match=r"halved, .*topk.*did you mean halved\?"):
        compose(join_overrides([*searched, "defense=halfed"]))
    with pytest.raises(ConfigError, match="did you mean times"):
        compose(join_overrides([*searched, "defense=halved", "defense.time=3"]))
    with pytest.raises(ConfigError, match="'halved' is not one of its choices"):
        compose("defense=halved")
    with pytest.raises(ConfigError, match="expected a folder, got nowhere"):
        search_in("nowhere")


@pytest.mark.parametrize("name", ["it's", "a b", "ü,[x]", "50%"])
def test_the_folder_may_have_any_name(tmp_path, name):
    (tmp_path / name / "defense").mkdir(parents=True)
    (tmp_path / name / "defense" / "mine.yaml").write_text("_target_: lab.mine\n")
    searched = search_in(str(tmp_path / name))
    assert compose(join_overrides([*searched, "defense=mine"])).defense._target_ == "lab.mine"


@pytest.mark.parametrize(
    ("overrides", "group", "name"),
    [
        ("defense=none defense._target_=lab.halve", "defense", "lab.halve"),
        ("defense=custom defense._target_=lab.halve", "defense", "lab.halve"),
        ("defense={_target_:lab.halve}", "defense", "lab.halve"),
        ("strategy=fed_avg +strategy.optimiser._target_=lab.lion", "strategy", "fed_avg+lab.lion"),
        ("defense=topk defense.share=0.1", "defense", "topk"),
        ("attack=custom attack._target_=lab.guess", "attack", "lab.guess"),
        ("attack=ig attack._target_=lab.guess", "attack", "lab.guess"),
        ("strategy=custom strategy._target_=lab.Steps", "strategy", "lab.Steps"),
        ("strategy._target_=lab.Steps", "strategy", "lab.Steps"),
        ("strategy={_target_:lab.Steps}", "strategy", "lab.Steps"),
        ("defense=adgp", "strategy", "fl_app.strategies.ADGP"),
        ("model=custom model._target_=lab.net", "model", "lab.net"),
        ("data=custom data._target_=lab.images", "data", "lab.images"),
    ],
)
def test_a_run_says_what_it_truly_runs(overrides, group, name):
    config = compose(overrides)
    assert config.choices[group] == name
    if group == "attack":
        assert config.attack.name == name


@pytest.mark.parametrize("group", ["defense", "attack", "strategy", "model", "data"])
def test_a_callable_from_the_network_needs_the_consent_of_the_node(group):
    text = f"{group}=custom {group}._target_=lab.thing"
    with pytest.raises(ConfigError, match=r"must be one of .*; got 'lab.thing'"):
        compose_sent(text, NOBODY, places=True)
    granted = compose_sent(text, Trust(targets=frozenset({"lab.thing"})), places=True)
    assert granted[group]._target_ == "lab.thing"


def test_a_folder_of_choices_never_comes_from_the_network(lab):
    text = join_overrides([*search_in(str(lab / "own")), "defense=halved"])
    with pytest.raises(ConfigError, match="is no setting of a run"):
        compose_sent(text, NOBODY, places=True)
    assert compose_sent(text, WHOLE, places=True).choices.defense == "halved"
