"""The command writes its reports and tells by its exit code whether findings are severe."""

import json
from pathlib import Path

import pytest

from fl_app.cli import audit as command

APPS = Path(__file__).parents[2] / "apps"


def run(app, out, *arguments):
    command.main(
        ["--app", str(APPS / app), "--out", str(out), "--no-exits", "--attack-seconds", "1", *arguments]
    )


def test_reports_are_written(tmp_path, capsys):
    run("tabular", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "audit.html",
        "audit.json",
        "audit.sarif",
        "app.log",
    }
    assert json.loads((tmp_path / "audit.json").read_text())["understood"]
    assert "tabular" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("app", "level", "code"),
    [("local_dp", "high", command.FOUND), ("numpy_only", "high", command.NOT_UNDERSTOOD)],
)
def test_findings_fail_a_build(tmp_path, app, level, code):
    with pytest.raises(SystemExit) as failure:
        run(app, tmp_path, "--fail-on", level)
    assert failure.value.code == code


def test_an_app_without_findings_passes(tmp_path):
    run("tabular", tmp_path, "--fail-on", "high")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--data", "nonsense"),
        ("--data", "a=/nowhere/at/all"),
        ("--rounds", "0"),
        ("--model", "nonsense"),
        ("--backend", "ray"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments):
    with pytest.raises(ValueError, match=arguments[0].lstrip("-")):
        run("tabular", tmp_path, *arguments)
