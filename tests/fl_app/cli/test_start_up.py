"""``fl-app`` answers help, the version and mistakes before it imports anything heavy."""

import subprocess
import sys
from pathlib import Path

import pytest

from fl_app import cli
from fl_app.cli.front_door import unknown_word
from fl_app.cli.help_text import MOST_USED, help_text
from fl_app.cli.subcommands import SUBCOMMANDS
from fl_app.config.compose import CONF_DIR, compose

HEAVY = {"torch", "flwr", "ray", "numpy", "scipy", "matplotlib", "attacks"}
BIN = Path(sys.executable).parent
ANSWER = """
import sys
sys.argv = ["fl-app", *sys.argv[1:]]
from fl_app.cli import main
try:
    main()
finally:
    print("\\nimported:", *{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""


def answer(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", ANSWER, *arguments], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["-h"], 0),
        (["--version"], 0),
        (["roundz=3"], 2),
        (["attack.stepz=3"], 2),
        (["defense=dpg"], 2),
        (["-m", "defense=none,tpok"], 2),
        (["rounds=0"], 2),
        (["repotr"], 2),
        (["rounds=3", "defense"], 2),
        (["--config-dir", "nowhere"], 2),
        (["--fast"], 2),
    ],
)
def test_an_answer_that_runs_nothing_imports_nothing_heavy(arguments, code):
    done = answer(*arguments)
    assert done.returncode == code, done.stderr
    said, _, imported = done.stderr.partition("imported:")
    assert "Traceback" not in said
    assert not HEAVY & set(imported.split())
    assert (len(said.strip().splitlines()) == 1) == (code == 2)


def test_the_help_shows_ten_settings_with_their_defaults_before_anything_else():
    lines = help_text().partition("settings")[2].splitlines()
    config = compose()
    shown = [line.split()[0] for line in lines if line[:2] == "  " and line[2] != " "][: len(MOST_USED)]
    assert shown == [f"{key}={config.choices.get(key, config.get(key))}" for key in MOST_USED]
    assert len(MOST_USED) == 10
    for choice in CONF_DIR.glob("*/*.yaml"):
        assert choice.stem in help_text()


@pytest.mark.parametrize("command", ["fl-app", "fl-app-report"])
def test_a_reader_that_goes_away_is_no_error(command):
    if not (BIN / command).exists():
        pytest.skip("the package is not installed beside this interpreter")
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {BIN / command} --help | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


def test_a_broken_pipe_that_is_not_the_terminal_s_is_shown(monkeypatch):
    from fl_app.cli.guard import guarded

    def lose_a_peer() -> None:
        raise BrokenPipeError("of a socket")

    with pytest.raises(BrokenPipeError, match="of a socket"):
        guarded("x", lose_a_peer)


@pytest.mark.parametrize(
    ("word", "group"), [("dgp", "defense"), ("resnet18", "model"), ("demo", "experiment")]
)
def test_a_bare_choice_gets_its_group(word, group):
    assert f"{group}={word}" in unknown_word(word)


@pytest.mark.parametrize(
    ("word", "meant"), [("repotr", "report"), ("atack", "attack"), ("roundz", "rounds=…"), ("lr", "lr=…")]
)
def test_an_unknown_word_gets_the_nearest_one_that_there_is(monkeypatch, capsys, word, meant):
    monkeypatch.setattr(sys, "argv", ["fl-app", word])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    message = capsys.readouterr().err
    assert f"(did you mean {meant}?)" in message
    assert all(command in message for command in SUBCOMMANDS)


def test_a_subcommand_is_the_command_of_its_module(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fl-app", "report", "nowhere"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("fl-app report: ")


def test_the_version_is_that_of_the_package(repository, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fl-app", "--version"])
    cli.main()
    stated = (repository / "pyproject.toml").read_text()
    assert f'version = "{capsys.readouterr().out.split()[1]}"' in stated
