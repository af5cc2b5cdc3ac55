"""The command writes its reports and tells by its exit code whether findings are severe."""

import hashlib
import json
from pathlib import Path

import pytest
from bundles import bundle_of

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


def test_a_bundle_is_audited_and_named_in_every_output(tmp_path, capsys):
    bundle = bundle_of("local_dp", tmp_path)
    out, annex = tmp_path / "out", tmp_path / "annex"
    given = [
        "--app",
        str(bundle),
        "--out",
        str(out),
        "--no-exits",
        "--attack-seconds",
        "1",
        "--dpia",
        str(annex),
    ]
    command.main(given)
    digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
    for path in (out / "audit.json", out / "audit.sarif", out / "audit.html", tmp_path / "annex.md"):
        assert digest in path.read_text()
    assert digest in (tmp_path / "annex.html").read_text()
    assert capsys.readouterr().out.count("annex: ") == 2


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
        ("--defense", "nonsense"),
        ("--defense", "none,soteria"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments):
    with pytest.raises(ValueError, match=arguments[0].lstrip("-").replace("defense", "mod")):
        run("tabular", tmp_path, *arguments)


def test_defenses_are_compared_in_one_table(tmp_path):
    run("tabular", tmp_path, "--defense", "none,sign", "--defense", "topk")
    rows = json.loads((tmp_path / "audit.json").read_text())["what_if"]
    assert [row["name"] for row in rows] == ["none", "sign", "topk"]
    assert all(row["error"] == "" and row["bytes"] > 0 for row in rows)
    page = (tmp_path / "audit.html").read_text()
    assert all(name in page for name in ("sign", "topk"))
