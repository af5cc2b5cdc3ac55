"""The benchmark of speech attacks reads its utterances, keeps what it computed, and prints its tables."""

import dataclasses
import json
import sys

import pytest
import torch

from benchmarks import speech_leakage
from benchmarks.speech_leakage import (
    Scale,
    held_out,
    main,
    observe,
    read_utterances,
    trained,
    transcript_line,
    untrained,
)
from fl_app.data.word_pieces import letters

SAID = ["AB", "BAD CAB", "C", "FED"]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    (tmp_path / "wordpieces.txt").write_text("\n".join(letters().pieces) + "\n", encoding="utf-8")
    lines = [f"1-2-{number} {text}" for number, text in enumerate(SAID)]
    (tmp_path / "utterances.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.setitem(speech_leakage.SCALES, "cpu", Scale(2, 3, 3))
    return tmp_path


def run(monkeypatch, corpus, *words):
    folders = ["--transcripts", str(corpus), "--audio", str(corpus / "none")]
    monkeypatch.setattr(sys, "argv", ["speech_leakage", str(corpus / "work"), *words, *folders])
    main()


def test_bags_are_found_once_and_kept(monkeypatch, corpus, capsys):
    run(monkeypatch, corpus, "bag", "--limit", "2")
    first = capsys.readouterr().out
    assert "0 of 2 utterances have a recording" in first
    cells = sorted((corpus / "work" / "bag-n1-k1").glob("*.json"))
    assert [json.loads(cell.read_text())["length"] for cell in cells] == [4, 9]
    assert all(json.loads(cell.read_text())["recall"] == 1.0 for cell in cells)
    monkeypatch.setattr(speech_leakage, "bag_cell", lambda *_: pytest.fail("computed again"))
    run(monkeypatch, corpus, "bag", "--limit", "2")
    assert capsys.readouterr().out == first


def test_batches_and_local_steps_are_cases_of_their_own(monkeypatch, corpus, capsys):
    run(monkeypatch, corpus, "bag", "--utterances", "2", "--local-steps", "2", "--told")
    (cell,) = (corpus / "work" / "bag-n2-k2-told").glob("*.json")
    content = json.loads(cell.read_text())
    assert sorted(content["names"]) == [f"1-2-{number}" for number in range(4)]
    assert content["length"] == 4 + 9 + 3 + 5
    assert any("rank 21 was given" in note for note in content["notes"])
    assert content["rank"] > 21  # inferred all the same: rounding hides the gap


def test_transcripts_are_searched_for_in_every_row(monkeypatch, corpus, capsys):
    run(monkeypatch, corpus, "transcript", "--rows", "none", "bag5")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| none", "| bag5"))]
    assert len(rows) == 2
    cells = [json.loads(path.read_text()) for path in (corpus / "work").glob("transcript-cpu-none/*.json")]
    assert sorted(cell["said"] for cell in cells) in (["ab", "c"], ["ab", "fed"], ["c", "fed"])
    assert all(cell["variables"] == cell["length"] * (len(letters()) + 128) for cell in cells)


def test_a_table_of_what_is_finished_computes_nothing(monkeypatch, corpus, capsys):
    run(monkeypatch, corpus, "transcript", "--rows", "bag", "--limit", "1")
    assert "bag, 1 of 1: " in capsys.readouterr().out
    monkeypatch.setattr(speech_leakage, "transcript_cell", lambda *_: pytest.fail("computed"))
    monkeypatch.setattr(speech_leakage, "bag_cell", lambda *_: pytest.fail("computed"))
    run(monkeypatch, corpus, "transcript", "--finished")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| none", "| bag"))]
    assert len(rows) == 1
    assert rows[0].startswith("| bag | 1 |")
    run(monkeypatch, corpus, "bag", "--finished")
    assert "no update was attacked yet" in capsys.readouterr().out


def test_a_trained_model_learns_once_from_what_is_not_attacked(corpus, monkeypatch):
    vocabulary = letters()
    heard = [dataclasses.replace(one, heard=True) for one in read_utterances(corpus, corpus, vocabulary)]
    taught, attacked = held_out(heard)
    assert [one.name for one in attacked] == ["1-2-0"]
    assert [one.name for one in taught] == ["1-2-1", "1-2-2", "1-2-3"]
    path = corpus / "work" / "model.pt"
    model = trained(vocabulary, taught, 3, path)
    moved = model.output.bias.detach() - untrained(vocabulary).output.bias
    said = sorted({token for one in taught for token in one.tokens})
    assert (moved[said] > 0).all()
    assert moved[[n for n in range(len(vocabulary)) if n not in said]].max() < 0
    monkeypatch.setattr(torch.optim, "Adam", lambda *_: pytest.fail("trained again"))
    torch.testing.assert_close(trained(vocabulary, taught, 3, path).output.bias, model.output.bias)


def test_a_line_has_the_errors_of_all_texts_together():
    cells = [
        {"said": "a b c", "found": "a b c", "exact": 1.0, "tokens_right": 4, "length": 4},
        {"said": "d", "found": "e", "exact": 0.0, "tokens_right": 1, "length": 4},
    ]
    line = transcript_line("bag", [cell | {"variables": 1000, "seconds": 3.0} for cell in cells])
    assert line == "| bag | 2 | 1,000 | 0.250 | 0.500 | 0.625 | 3 |"


def test_local_steps_leave_the_model_as_it_was_and_move_against_the_gradient(corpus):
    vocabulary = letters()
    said = read_utterances(corpus, corpus, vocabulary)
    model = untrained(vocabulary)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    once = observe(model, [said[:1]], vocabulary.start, 0.1)
    twice = observe(model, [said[:1], said[:1]], vocabulary.start, 0.1)
    torch.testing.assert_close(dict(model.state_dict()), before)
    assert (once.local_steps, twice.local_steps, twice.batch_size) == (None, 2, 2)
    for name, delta in twice.update.items():
        slope = once.update[name]
        if slope.norm() > 1e-3:
            assert torch.cosine_similarity(-delta.flatten(), slope.flatten(), dim=0) > 0.9, name
