"""``fl-app -m experiment=…`` of a study: what the command line says, and what the user is told in the end."""

import json
import sys
from pathlib import Path

import pytest

from fl_app import cli
from fl_app.cli import study as study_command
from fl_app.config.compose import compose, study_of
from fl_app.experiments.studies import StudyEnd, StudyOrder, plan_cells, read_study, run_study

TINY = ["accuracy:data.train_per_class=8", "accuracy:data.test_per_class=4", "clients=3", "batch_size=4"]
TINY += ["rounds=2", "defense=none,sign", "seed=0"]


@pytest.fixture
def ordered(tmp_path, monkeypatch):
    """``ordered(arguments)`` runs ``fl-app`` here and returns what it asks of the study, which is not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FL_APP_DATA", raising=False)
    monkeypatch.setattr(study_command, "show_logs", lambda verbose: None)

    def order(*arguments: str) -> StudyOrder:
        found: list[StudyOrder] = []

        def run(asked, say):
            found.append(asked)
            raise KeyboardInterrupt

        monkeypatch.setattr(sys, "argv", ["fl-app", *arguments])
        monkeypatch.setattr(study_command, "run_study", run)
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 130
        return found[0]

    return order


def test_what_is_no_setting_of_a_run_is_taken_out(ordered):
    order = ordered("-m", "experiment=dgp_table1", "scale=paper", "jobs=2", "parts=ig,rob", "rounds=3")
    assert (order.name, order.scale, order.jobs, order.parts) == ("dgp_table1", "paper", 2, ("ig", "rob"))
    assert order.overrides == ("rounds=3",)
    assert order.command == "fl-app -m scale=paper jobs=2 parts=ig,rob experiment=dgp_table1 rounds=3"
    plain = ordered("--multirun", "experiment=dgp_table1", "hydra.sweep.dir=there")
    assert (plain.scale, plain.jobs, plain.parts, plain.root) == ("cpu", 1, (), Path("there"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "experiment=quick", "scale=paper"], "scale: goes with -m and a study"),
        (["-m", "experiment=quick", "parts=ig"], "parts: goes with -m and a study"),
        (["experiment=dgp_table1", "jobs=2"], "jobs: goes with -m"),
        (["-m", "experiment=dgp_table1", "jobs=many"], "jobs: must be a whole number of at least 1"),
        (["-m", "experiment=dgp_table1", "scale=gpu"], "scale: dgp_table1 has cpu, paper, got 'gpu'"),
        (["-m", "experiment=dgp_table1,quick"], "dgp_table1: a study runs alone, got dgp_table1, quick"),
        (
            ["-m", "experiment=dgp_table1", "hydra/launcher=joblib"],
            "a study is not run by Hydra; expected jobs=N",
        ),
    ],
)
def test_mistakes_are_named(monkeypatch, tmp_path, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study_command, "show_logs", lambda verbose: None)
    monkeypatch.setattr(sys, "argv", ["fl-app", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_study_is_no_part_of_its_cells_config():
    config = compose("experiment=dgp_table1")
    assert "study" not in config
    assert config.threads == 1


def test_the_cells_of_the_hospital_study_are_those_that_were_typed_before():
    cells = plan_cells(
        read_study("fltop_table2", study_of("fltop_table2")), ["seed=0", "private:defense=fl_top"]
    )
    configs = [cell.config for cell in cells if cell.at["scheme"] == "FL-TOP 5 %" and cell.part == "plain"]
    assert configs == [compose("experiment=fltop_table2 defense=fl_top defense.share=0.05")]


def test_a_study_runs_from_the_command_to_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FL_APP_DATA", raising=False)
    monkeypatch.setattr(study_command, "show_logs", lambda verbose: None)
    ends: list[StudyEnd] = []
    monkeypatch.setattr(study_command, "run_study", lambda *asked: ends.append(run_study(*asked)) or ends[-1])
    monkeypatch.setattr(sys, "argv", ["fl-app", "-m", "experiment=dgp_table1", "parts=accuracy", *TINY])
    cli.main()
    said = capsys.readouterr().out
    (end,) = ends
    assert end.page.parent.parent == Path("multirun/dgp_table1/cpu")
    assert f"study: {end.page.resolve()}" in said
    assert "DGP loses at most 2.5 points of accuracy: not measured: not among the cells" in said
    content = json.loads((end.page.parent / "study.json").read_text())
    assert [cell["status"] for cell in content["cells"]] == ["finished", "finished"]
    assert content["notes"] == ["data=photos: FL_APP_DATA/cifar10/train is not there"]
