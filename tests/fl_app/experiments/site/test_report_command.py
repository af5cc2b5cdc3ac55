"""What `fl-app-report` writes when it is asked for a site or for the frontier alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from run_folders import write_run
from study_folders import write_study

from fl_app import cli


@pytest.fixture
def call(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def report(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["fl-app-report", *arguments])
        cli.report()

    return report


def write_reported_run(name: str) -> Path:
    run = write_run(Path("multirun") / name, rounds=2)
    (run / "report.html").write_text("a report that is there already")
    return run


def test_the_frontier_alone_leaves_reports_as_they_are(call, capsys):
    run = write_reported_run("a")
    call("multirun", "--frontier", "pictures/frontier.png", "--leak", "best")
    assert "the attacker&#x27;s best image" in Path("pictures/frontier.svg").read_text()
    assert Path("pictures/frontier.png").is_file()
    assert capsys.readouterr().out.splitlines() == [
        "frontier: pictures/frontier.png",
        "frontier: pictures/frontier.svg",
    ]
    assert (run / "report.html").read_text() == "a report that is there already"


def test_a_site_is_built_with_the_reports_that_are_there(call, capsys):
    write_reported_run("a")
    call("--site", "site", "multirun")
    assert capsys.readouterr().out.splitlines() == ["site: site/index.html"]
    assert Path("site/runs/a/report.html").read_text() == "a report that is there already"


def test_results_are_written_where_they_are_wanted(call, capsys):
    write_study(Path("multirun/dgp_table1/cpu"))
    call("--results", "results.md", "multirun")
    assert capsys.readouterr().out.splitlines() == ["results: results.md"]
    assert Path("results.md").is_file()


@pytest.mark.parametrize("output", ["--site", "--frontier"])
def test_a_folder_that_does_not_exist_is_one_line(call, capsys, output):
    with pytest.raises(SystemExit) as end:
        call("nowhere", output, "x")
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "nowhere" in line
    assert "does not exist" in line
