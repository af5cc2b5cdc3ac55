"""The log of what left a node, and the commands that read it."""

import json

import pytest
from hostile_server import SMALL, code_of, model_of, node, order, parts_of, send

from fl_app.cli import policy as command
from fl_app.policy import Journal, read_journal
from fl_app.wire.messages import unpack_reply


def write(journal: Journal, round: int, *, allowed: bool = True) -> None:
    journal.write(run=1, round=round, kind="train", size=10, allowed=allowed, decision="policy")


def test_files_are_bounded_and_the_oldest_lines_go_first(tmp_path):
    journal = Journal(tmp_path / "log.jsonl", most_bytes=1000, most_files=3)
    for round in range(100):
        write(journal, round)
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    rounds = [line["round"] for line in read_journal(journal.path)]
    assert rounds == list(range(rounds[0], 100))
    assert journal.path.stat().st_mode & 0o077 == 0


def test_lines_that_were_cut_short_are_passed_over(tmp_path):
    journal = Journal(tmp_path / "log.jsonl")
    write(journal, 1)
    with journal.path.open("a") as file:
        file.write('{"time": "2\n[1]\n')
    write(journal, 2)
    assert [line["round"] for line in read_journal(journal.path)] == [1, 2]


def test_a_node_notes_what_left_and_what_it_refused(tmp_path, capsys):
    text = f"model=mlp defense=none {SMALL}"
    parts = parts_of(text)
    model, grid = model_of(parts.model), node(text, run_id=77, state_dir=str(tmp_path))
    reply = send(grid, order(parts.model, model, key="0" * 16))
    assert code_of(send(grid, order(parts.model, model, lr=0.5, key="0" * 16))) == "order"
    left, kept = read_journal(tmp_path / "leaving.jsonl")
    size = len(unpack_reply(reply).update)
    assert {name: left[name] for name in ("run", "round", "kind", "bytes", "allowed")} == {
        "run": 77,
        "round": 1,
        "kind": "train",
        "bytes": size,
        "allowed": True,
    }
    assert (kept["allowed"], kept["decision"], kept["bytes"]) == (False, "order", 0)
    command.main(["log", str(tmp_path), "--refused", "--json"])
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == kept
    command.main(["log", str(tmp_path)])
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_policy_is_told_in_words_or_refused_by_name(tmp_path, capsys):
    command.main(["check"])
    default = capsys.readouterr().out
    (tmp_path / "p.toml").write_text("min_batch = 99\n")
    command.main(["check", str(tmp_path / "p.toml")])
    strict = capsys.readouterr().out
    assert "99" in strict
    assert len(strict.splitlines()) == len(default.splitlines()) > 8
    (tmp_path / "p.toml").write_text("min_bach = 99\n")
    with pytest.raises(ValueError, match="min_bach"):
        command.main(["check", str(tmp_path / "p.toml")])
    with pytest.raises(FileNotFoundError):
        command.main(["log", str(tmp_path / "nowhere")])
