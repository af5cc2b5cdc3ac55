"""Text through the whole federation: clients by their documents, less loss, the sentence in the report."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from shipped import defense_of, shipped

from fl_app.cli.new_attack import attack_again
from fl_app.client_app import app
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.data import text
from fl_app.data.prose import python_manual
from fl_app.defenses import dp_sgd
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.report.pages.summary import summary_lines
from fl_app.running.federation import run_federation
from fl_app.text import english
from fl_app.training import Rules, Step, parameters, task_of

TINY = "model=bert_mlm model.layers=1 model.width=16 model.heads=2 model.inner=32"
TEXT = f"data=text data.max_tokens=16 {TINY} clients=3 batch_size=4 attack=none threads=1 baseline=false"
DEFENSES = shipped("defense")
SOON = {"warm_start": "rounds=2 defense.rounds=1", "accumulate": "rounds=1 defense.floor=1"}
"""Settings with which a defense that waits sends in the last round."""


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def run(folder: Path, settings: str) -> dict:
    settings += f" run_dir={folder}"
    clients = server_parts(settings).config["clients"]
    run_federation(InlineGrid(app, clients, run_config={"overrides": settings}), settings)
    return json.loads((folder / "result.json").read_text())


def trained(settings: str) -> tuple[dict[str, torch.Tensor], list]:
    parts = server_parts(settings)
    grid = InlineGrid(app, parts.config["clients"], run_config={"overrides": settings})
    start = hold({name: tensor.clone() for name, tensor in parts.model.state_dict().items()})
    parts.strategy.start(grid=grid, initial_arrays=start, num_rounds=parts.config["rounds"])
    return parts.strategy.weights, parts.strategy.records


def test_a_client_has_whole_documents_that_nobody_else_has():
    settings = f"{TEXT} defense=none partition=natural"
    parts, dealt = server_parts(settings), client_parts(settings)
    held = [set(dealt.data_of(client, 3).samples.sources.tolist()) for client in range(3)]
    assert sorted(document for one in held for document in one) == sorted(
        parts.dataset.train.sources.unique().tolist()
    )
    assert [set(torch.nonzero(row).flatten().tolist()) for row in parts.histogram] == held


@pytest.mark.parametrize(
    ("more", "fall"), [("strategy=fed_avg defense=none lr=0.5", 0.5), ("defense=dgp lr=4.0", 0.05)]
)
def test_rounds_lower_the_loss_and_the_scores_are_those_of_the_model_that_is_left(tmp_path, more, fall):
    settings = f"{TEXT} rounds=6 evaluate_every=3 validation=0.25 {more}"
    start = server_parts(settings)
    before = task_of(start.dataset).evaluate(start.model.eval(), start.dataset.test)
    result = run(tmp_path / "run", settings)
    last = result["rounds"][-1]
    assert result["status"] == "finished"
    assert not any(row["failures"] for row in result["rounds"])
    assert last["loss"] < before.loss - fall
    start.model.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"))
    found = task_of(start.dataset).evaluate(start.model, start.dataset.test)
    assert (last["accuracy"], last["loss"]) == pytest.approx((found.accuracy, found.loss))
    assert last["validation_accuracy"] is not None
    assert last["wer"] is last["balanced_accuracy"] is None


@pytest.mark.parametrize("defense", DEFENSES)
def test_every_defense_goes_with_text_or_is_refused_for_a_reason(defense):
    settings = f"{TEXT} defense={defense} {SOON.get(defense, 'rounds=1')}"
    if defense_of(defense).images_only:
        with pytest.raises(ConfigError, match=f"defense: {defense} does not work on text"):
            server_parts(settings)
        return
    weights, records = trained(settings)
    assert not records[-1].failures
    assert records[-1].clients
    start = client_parts(settings).start()
    assert any(not torch.equal(weights[name], start[name]) for name in start)


def test_the_same_seed_gives_the_same_model():
    settings = f"{TEXT} defense=none rounds=2 strategy=fed_avg"
    (one, _), (two, _) = trained(settings), trained(settings)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_records_of_dp_sgd_are_sentences_whatever_stands_beside_them():
    settings = f"{TEXT} defense=none"
    data, model = client_parts(settings).data_of(0, 3), server_parts(settings).model
    defense = dp_sgd(rounds=1, clip=1e-2, noise_multiplier=0.0)
    step = Step(torch.Generator().manual_seed(0), expected=1, rate=0.1, per_round=1)
    batch = data.batch(torch.arange(3), torch.device("cpu"), torch.float32)
    _, together = defense.rules.differentiate(model, batch, Rules().loss, step)
    total = {name: torch.zeros_like(p) for name, p in parameters(model).items()}
    for inputs, labels in zip(batch.inputs.split(1), batch.labels.split(1), strict=True):
        loss = torch.nn.functional.cross_entropy(*batch.predict(model, inputs, labels))
        own = torch.autograd.grad(loss, list(parameters(model).values()))
        size = torch.cat([part.flatten() for part in own]).norm()
        for name, part in zip(total, own, strict=True):
            total[name] += part * (1e-2 / size)
    torch.testing.assert_close(together, total, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("defense=none attack=ig", "attack: must be none or one that reads text, got ig"),
        ("defense=none attack=transcript", "attack: must be none or one that reads text, got transcript"),
        ("defense=none model=lenet", r"model: .*lenet_zhu: in_shape must be three positive integers"),
        ("defense=none partition=natural clients=40", "partition: natural: 40 clients need at least as many"),
        ("defense=none client.inspect=warn", "client.inspect: models of images are inspected"),
        ("defense=none data.masked=0", r"data: Dataset text: masked must be in \(0, 1\), got 0"),
    ],
)
def test_refuses_before_the_first_round_what_does_not_go_with_text(more, message):
    settings = TEXT.replace(TINY, "") if "model=lenet" in more else TEXT
    with pytest.raises(ConfigError, match=message):
        server_parts(f"{settings} {more}")


def test_a_sentence_is_read_off_an_update_that_passed_the_tap(tmp_path):
    wide = "model.width=48 model.heads=4 model.inner=96"
    settings = f"{TEXT} {wide} data.max_tokens=12 defense=none rounds=1 attack=text_dlg attack.steps=25"
    result = run(tmp_path, settings)
    (entry,) = result["attacks"]
    told = entry["tokens_by_iteration"]
    assert entry["token_accuracy"] == 1.0
    assert entry["transcript"]["found"] == entry["transcript"]["true"]
    assert english().decode(english().encode(entry["transcript"]["true"])) == entry["transcript"]["true"]
    assert told["true"][0] == "[CLS]"
    assert sum(told["masked"]) >= 1
    assert [read["iteration"] for read in told["reads"]][:2] == [0, 2]
    assert told["reads"][-1] == {"iteration": None, "tokens": told["true"], "accuracy": 1.0}
    assert told["reads"][0]["accuracy"] < 0.5
    page = (tmp_path / "report.html").read_text()
    assert 'data-fact="original-text"' in page
    assert "<mark>✗" in page
    (line,) = [line for line in summary_lines(tmp_path) if "text_dlg" in line]
    assert "100.0 %" in line
    # once more, with masked places and targets: beside what was there, and in words
    attack_again(tmp_path, ["attack=text_dlg", "attack.grant.labels=true", "attack.steps=1"])
    before, again = json.loads((tmp_path / "result.json").read_text())["attacks"]
    assert before == entry
    assert (again["labels_from"], again["granted"]["labels"]) == ("granted", True)
    asked = [place for place, hidden in enumerate(told["masked"]) if hidden]
    (first, *_) = again["tokens_by_iteration"]["reads"]
    assert [first["tokens"][place] for place in asked] == [told["true"][place] for place in asked]
    # what was granted does not count
    right = sum(a == b for a, b in zip(first["tokens"], told["true"], strict=True)) - len(asked)
    assert first["accuracy"] == pytest.approx(right / (len(told["true"]) - len(asked)))


@pytest.mark.slow
@pytest.mark.parametrize("layers", [2, 4])
def test_sentences_of_the_papers_lengths_are_recovered_in_a_run(tmp_path, layers):
    """Zhu et al. 2019, Table 1: about 20 to 25 tokens; here from three clients, each with one document."""
    lines = [line for topic in python_manual().values() for line in topic]
    for length in (20, 23, 25):
        mine = [line for line in lines if len(english().encode_sentence(line)) == length]
        (tmp_path / "corpus").mkdir(exist_ok=True)
        (tmp_path / "corpus" / f"{length}.txt").write_text("\n".join(mine))
    assert set(text(tmp_path / "corpus").source_names) == {"20", "23", "25"}
    result = run(
        tmp_path / "run",
        f"data=text data.root={tmp_path / 'corpus'} model=bert_mlm model.layers={layers} clients=3 "
        "partition=natural defense=none rounds=1 attack=text_dlg attack.clients=[0,1,2] threads=1",
    )
    assert sorted(len(e["tokens_by_iteration"]["true"]) for e in result["attacks"]) == [20, 23, 25]
    assert min(entry["token_accuracy"] for entry in result["attacks"]) >= 0.9
