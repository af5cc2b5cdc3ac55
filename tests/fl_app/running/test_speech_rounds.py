"""Speech through the whole federation: clients by their speakers, less loss, and the words in the report."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors.torch import load_file
from tone_corpus import write_corpus

from fl_app.client_app import app
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.report.pages.summary import summary_lines
from fl_app.running.federation import run_federation
from fl_app.training import task_of

MODEL = "model=las model.encoder=8 model.layers=2 model.embedding=8 model.attention=8 model.decoder=16"
SPEECH = f"data=speech data.mels=12 {MODEL} partition=natural clients=3 attack=none threads=1"


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def settings(root, more: str = "defense=none") -> str:
    return f"{SPEECH} data.root={root} {more}"


def run(folder, text: str) -> dict:
    text += f" run_dir={folder}"
    clients = server_parts(text).config["clients"]
    run_federation(InlineGrid(app, clients, run_config={"overrides": text}), text)
    return json.loads((folder / "result.json").read_text())


def test_a_client_is_one_or_more_speakers_whom_nobody_else_has(tmp_path):
    text = settings(write_corpus(tmp_path, speakers=7))
    parts, dealt = server_parts(text, WHOLE), client_parts(text, WHOLE)
    held = [set(dealt.data_of(client, 3).samples.sources.tolist()) for client in range(3)]
    assert sorted(speaker for one in held for speaker in one) == sorted(
        parts.dataset.train.sources.unique().tolist()
    )
    assert [len(one) for one in held] == [2, 2, 2]
    assert parts.histogram.shape == (3, 7)
    assert [set(torch.nonzero(row).flatten().tolist()) for row in parts.histogram] == held


@pytest.mark.parametrize(
    "more", ["strategy=fed_avg defense=none lr=0.5", "strategy=fed_sgd defense=dgp lr=1.0"]
)
def test_rounds_lower_the_loss_and_the_scores_are_those_of_the_model_that_is_left(tmp_path, more):
    text = settings(write_corpus(tmp_path / "corpus"), f"batch_size=4 validation=0.25 {more}")
    start = server_parts(text)
    before = task_of(start.dataset).evaluate(start.model.eval(), start.dataset.test)
    result = run(tmp_path / "run", f"{text} rounds=12 evaluate_every=6 baseline=false")
    last = result["rounds"][-1]
    assert result["status"] == "finished"
    assert last["loss"] < before.loss - 0.5
    assert not any(row["failures"] for row in result["rounds"])
    start.model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    found = task_of(start.dataset).evaluate(start.model, start.dataset.test)
    assert last["wer"] == result["summary"]["wer"] == pytest.approx(found.wer)
    assert (last["accuracy"], last["loss"]) == pytest.approx((found.accuracy, found.loss))
    assert last["balanced_accuracy"] is last["auroc"] is result["rounds"][0]["wer"] is None
    words = f"{100 * found.wer:.1f} %"
    assert f"word error rate: {words}" in summary_lines(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"Word error rate {words}" in page
    assert "word errors" in page


@pytest.mark.parametrize(
    "attack",
    [
        "bag_of_words",
        "bag_of_words attack.grant.length=true attack.fallback=false attack.scale_rows=false",
        "transcript attack.steps=150 attack.restarts=2",
    ],
)
def test_what_was_said_is_read_off_an_update_that_passed_the_tap(tmp_path, attack):
    # letters: 64 units must be more than a transcript has tokens
    text = settings(write_corpus(tmp_path / "corpus"), "defense=none rounds=1 batch_size=4 model.decoder=64")
    result = run(tmp_path / "run", f"{text} attack={attack} baseline=false")
    (found,) = result["attacks"]
    assert found["rule"] == "hyperplanes"
    assert found["granted"].get("length") == (len(found["true_labels"]) if "length=true" in attack else None)
    if attack.startswith("bag_of_words"):
        assert set(found["found_labels"]) == set(found["true_labels"])
        assert found["rank"] == len(found["true_labels"])
        assert found["rank_error"] == 0
        assert found["labels"]["exact"] == 1.0
    else:
        assert found["transcript"]["true"].replace(" ", "").isalpha()
        assert 0 <= found["token_accuracy"] <= 1
        assert found["token_wer"] is not None
        assert found["variables"] > 64
        assert 0 <= found["labels"]["f1"] <= 1
        assert found["transcript"]["found"] in (tmp_path / "run" / "report.html").read_text()


def test_the_same_seed_gives_the_same_model(tmp_path):
    text = settings(write_corpus(tmp_path, speakers=4), "defense=none rounds=2 batch_size=4")

    def trained() -> dict[str, torch.Tensor]:
        parts = server_parts(text)
        grid = InlineGrid(app, 3, run_config={"overrides": text})
        parts.strategy.start(grid=grid, initial_arrays=hold(parts.model.state_dict()), num_rounds=2)
        return parts.strategy.weights

    one, two = trained(), trained()
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("defense=none attack=ig", "attack: must be none or one that reads transcripts, got ig"),
        ("defense=none model=lenet", r"model: .*lenet_zhu: in_shape must be three positive integers"),
        ("defense=none clients=9", "partition: natural: 9 clients need at least as many groups, got"),
        ("defense=soteria", "defense: soteria does not work on transcripts"),
        ("defense=dp_sgd", "defense: dp_sgd: Opacus cannot differentiate this model"),
    ],
)
def test_refuses_before_the_first_round_what_does_not_go_with_speech(tmp_path, more, message):
    root = write_corpus(tmp_path, speakers=4)
    text = f"{SPEECH} data.root={root} {more}"
    if "model=lenet" in more:
        text = text.replace(MODEL, "")
    with pytest.raises(ConfigError, match=message):
        server_parts(text)
