"""``fl-app -m``: which cells there are and where they go, and what the user is told in the end."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fl_app import cli
from fl_app.cli import run as run_command
from fl_app.cli import sweep as sweep_command
from fl_app.cli.before_hydra import check_overrides
from fl_app.config import compose as overrides
from fl_app.config.compose import ConfigError, compose, join_overrides
from fl_app.experiments.sweep import Cell, SweepEnd
from fl_app.report import find_runs

BIN = Path(sys.executable).parent
QUICK = [
    "data.train_per_class=8",
    "data.test_per_class=4",
    "clients=3",
    "batch_size=4",
    "rounds=2",
    "threads=1",
    "attack=none",
]
needs_install = pytest.mark.skipif(
    not (BIN / "fl-app").exists(), reason="the package is not installed beside this interpreter"
)


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """``planned(arguments)`` runs ``fl-app`` here and returns the cells, which are not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_command, "show_logs", lambda verbose: None)

    def plan(*arguments: str) -> list[Cell]:
        cells: list[Cell] = []
        monkeypatch.setattr(sys, "argv", ["fl-app", *arguments])
        monkeypatch.setattr(
            sweep_command, "run_sweep", lambda wanted, say, jobs: cells.extend(wanted) or SweepEnd([], [])
        )
        cli.main()
        return cells

    return plan


@pytest.fixture
def own_conf(tmp_path, monkeypatch, repository):
    """A copy of conf/ with an experiment that chooses in other groups, and one with mistakes."""
    conf = tmp_path / "conf"
    shutil.copytree(repository / "conf", conf)
    (conf / "experiment" / "table.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /model: mlp\n  - override /partition: shards\n  - override /attack: none\n"
        "clients: 7\npartition:\n  per_client: 2\n"
        "hydra:\n  sweeper:\n    params:\n      defense: topk,sign\n      seed: 3\n"
    )
    (conf / "experiment" / "wrong.yaml").write_text(
        "# @package _global_\nhydra:\n  sweeper:\n    params:\n      defense: none,tpok\n"
    )
    for module in (run_command, overrides):
        monkeypatch.setattr(module, "CONF_DIR", conf)
    compose.cache_clear()
    yield conf
    compose.cache_clear()


def choices(cells: list[Cell]) -> list[tuple]:
    configs = [compose(join_overrides(cell.overrides)) for cell in cells]
    return [(cfg.choices.defense, cfg.seed) for cfg in configs]


def test_an_experiment_names_its_cells_and_its_folder(planned, tmp_path):
    cells = planned("-m", "experiment=quick", "rounds=3")
    assert choices(cells) == [("none", 0), ("dgp", 0)]
    assert {cell.sweep_folder for cell in cells} == {tmp_path / "multirun" / "quick"}
    cfg = compose(join_overrides(cells[0].overrides))
    assert (cfg.rounds, cfg.evaluate_every, cfg.attack.steps) == (3, 5, 100)


def test_an_experiment_chooses_in_groups_and_the_command_line_replaces_its_values(planned, own_conf):
    cells = planned("-m", "experiment=table")
    assert choices(cells) == [("topk", 3), ("sign", 3)]
    cfg = compose(join_overrides(cells[0].overrides))
    assert (cfg.choices.model, cfg.choices.partition, cfg.partition.per_client) == ("mlp", "shards", 2)
    assert (cfg.choices.attack, cfg.clients) == ("none", 7)
    assert "experiment" not in cfg.choices
    assert choices(planned("-m", "experiment=table", "defense=dgp")) == [("dgp", 3)]
    assert compose("experiment=table model=lenet").choices.model == "lenet"


def test_without_an_experiment_the_folder_is_named_by_the_time(planned, tmp_path):
    cells = planned("-m", "defense=topk", "seed=0,1")
    assert choices(cells) == [("topk", 0), ("topk", 1)]
    (folder,) = {cell.sweep_folder for cell in cells}
    day, hour = folder.relative_to(tmp_path / "multirun").parts
    assert time.strptime(f"{day} {hour}", "%Y-%m-%d %H-%M-%S")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["experiment=quik"], ["experiment: 'quik' is not one of its choices", "did you mean quick?"]),
        (["experiment=wrong"], ["defense: 'tpok' is not one of its choices", "did you mean topk?"]),
        (["experiment=table", "roundz=1"], ["roundz: unknown key", "did you mean rounds?"]),
        (["defense=none", "hydra.sweep.subdir=x"], ["hydra.sweep.subdir: a cell's folder"]),
    ],
)
def test_mistakes_are_named_before_anything_runs(planned, own_conf, capsys, arguments, words):
    with pytest.raises(SystemExit) as end:
        planned("-m", *arguments)
    assert end.value.code == 2
    message = capsys.readouterr().err
    for word in words:
        assert word in message


def test_several_values_without_dash_m_are_refused(planned, capsys):
    with pytest.raises(SystemExit) as end:
        planned("defense=none,topk")
    assert end.value.code == 2
    assert "defense=none,topk: multiple values given; add -m" in capsys.readouterr().err


def test_values_that_are_only_refused_together_do_not_stop_the_sweep():
    check_overrides(["strategy=fed_avg,fed_sgd", "defense=dgp,adgp"])
    with pytest.raises(ConfigError, match="defense=adgp brings its own"):
        check_overrides(["strategy=fed_avg", "defense=adgp"])


def test_another_launcher_of_hydra_is_refused_rather_than_ignored():
    state = OmegaConf.create({"sweep": {"subdir": "."}, "launcher": {"_target_": "elsewhere.Launcher"}})
    with pytest.raises(ConfigError, match=r"hydra/launcher: .* got elsewhere\.Launcher"):
        sweep_command.check_launch(state)


def test_failed_cells_are_named_in_the_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sweep_command, "run_sweep", lambda cells, say, jobs: SweepEnd([], ["defense=topk"]))
    with pytest.raises(SystemExit) as end:
        sweep_command.run_cells([([], tmp_path)] * 2, named=True)
    assert end.value.code == 1
    assert "1 of 2 cells failed; the same command runs them again:\n  defense=topk" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("named", "words"),
    [
        (True, "the same command goes on with what is not finished"),
        (False, "the same command with hydra.sweep.dir="),
    ],
)
def test_an_interrupted_sweep_says_how_to_go_on(tmp_path, monkeypatch, capsys, named, words):
    def interrupted(cells, say, jobs):
        raise KeyboardInterrupt

    monkeypatch.setattr(sweep_command, "run_sweep", interrupted)
    with pytest.raises(SystemExit) as end:
        sweep_command.run_cells([([], tmp_path)], named=named)
    assert end.value.code == 130
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("experiment", sorted(p.stem for p in (overrides.CONF_DIR / "experiment").glob("*")))
def test_every_experiment_sets_what_there_is_or_what_it_uses_itself(experiment):
    text = (overrides.CONF_DIR / "experiment" / f"{experiment}.yaml").read_text()
    new = set(compose(f"experiment={experiment}")) - set(compose(""))
    assert not [key for key in new if f"${{{key}." not in text], "a key that nothing reads: mistyped?"


@needs_install
def test_two_processes_share_a_sweep_and_both_compare_all_of_it(tmp_path):
    command = [str(BIN / "fl-app"), "-m", "experiment=quick", "defense=none,sign", *QUICK]
    piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen(command, cwd=tmp_path, text=True, **piped) for _ in range(2)]
    try:
        outputs = [process.communicate(timeout=600) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], outputs
    said = "".join(stdout for stdout, _ in outputs)
    assert said.count(": finished in ") == 2, said
    for stdout, _ in outputs:
        ended = [line for line in stdout.splitlines() if "finished" in line]
        assert {line[:11] for line in ended} == {"cell 1 of 2", "cell 2 of 2"}
        assert f"comparison: {tmp_path / 'multirun' / 'quick' / 'comparison.html'}" in stdout
    runs = find_runs([tmp_path / "multirun" / "quick"])
    results = [json.loads((run / "result.json").read_text()) for run in runs]
    assert sorted(r["config"]["choices"]["defense"] for r in results) == ["none", "sign"]
    assert [r["status"] for r in results] == ["finished"] * 2
    assert [run.name.rpartition("-")[2] for run in runs] == [r["config_hash"][:8] for r in results]
    assert "sign" in (tmp_path / "multirun" / "quick" / "comparison.html").read_text()
