"""Everything that a deployed node says to a server is a code and a fixed text."""

import csv
import json
from pathlib import Path

import pytest
from federations import SMALL as FEW
from federations import train
from hostile_server import DEPLOYED, SMALL, code_of, model_of, node, order, parts_of, send

from fl_app.client_app import app
from fl_app.data.hospital import CATEGORIES, LEFT_OUT, TARGET
from fl_app.data.vocabularies import plain_vocabulary
from fl_app.data.word_pieces import letters
from fl_app.flower import InlineGrid
from fl_app.models import ModelSpec
from fl_app.policy import Refusal, read_journal
from fl_app.policy.refusal import TEXTS
from fl_app.wire.messages import ENDORSE, LOCATE, OFFER, SHARE, TRAIN, UNMASK, Order, pack_blob, pack_order

OWN = "defense=dgp client.pin_model=true"
PATIENT, NUMBER = "SOME PATIENT", "123-45-6789"


@pytest.fixture
def clinic(tmp_path) -> Path:
    columns = ["patient_name", "ssn", "age", *CATEGORIES, *sorted(LEFT_OUT), TARGET]
    row = [PATIENT, NUMBER, "71", "female", "ARF/MOSF w/Sepsis", "ARF/MOSF", "under $11k", "hispanic"]
    with (tmp_path / "support2.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerow([*row, "metastatic", *["1"] * len(LEFT_OUT), "1"])
    return tmp_path


def mlp(shape: list[int], classes: int) -> ModelSpec:
    settings = {"activation": "relu", "hidden": [256], "in_shape": shape, "num_classes": classes}
    settings["one_logit"] = False
    return ModelSpec("fl_app.models.mlp", settings)


def is_fixed(reply) -> bool:
    fixed = {f"<class 'fl_app.policy.refusal.Refusal'>:<'{Refusal(code)}'>" for code in TEXTS}
    return reply.error.reason in fixed


@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("column", ["patient_name", "ssn", "race", "ca", "nope"])
def test_no_cell_and_no_column_of_a_table_is_told(column, trust, clinic):
    encoding = {"numbers": [column], "median": [0], "mean": [0], "std": [1], "categories": []}
    facts = {"class_names": ["left alive", "died in hospital"], "in_shape": [1], "mean": [], "std": []}
    facts |= {"encoding": encoding, "vocabulary": None, "masked": None}
    text = "data=support2 model=mlp attack=none threads=1"
    spec = mlp([1], 2)
    grid = node(text, 1, data_root=str(clinic), overrides=OWN, trust_config=trust)
    reply = send(grid, order(spec, model_of(spec), facts=json.dumps(facts)))
    if trust:  # the attack itself works
        assert column in reply.error.reason
    else:
        assert is_fixed(reply)


@pytest.mark.parametrize("classes", [["zzz"], ["HIV-positive"]])
def test_no_name_of_a_folder_or_file_is_told(classes, tmp_path):
    folder = tmp_path / "train" / "HIV-positive"
    folder.mkdir(parents=True)
    (folder / "patient_1951.png").write_text("no picture")
    facts = {"class_names": classes, "in_shape": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}
    facts |= {"encoding": None, "vocabulary": None, "masked": None}
    spec = mlp([3, 32, 32], 1)
    grid = node("data=imagefolder data.root=x model=mlp attack=none", 1, data_root=str(tmp_path))
    assert is_fixed(send(grid, order(spec, model_of(spec), facts=json.dumps(facts))))


def test_no_word_of_a_transcript_is_told(tmp_path):
    (tmp_path / "notes.trans.txt").write_text(f"Patient {PATIENT} was told about her diagnosis\n")
    vocabulary = plain_vocabulary(letters())
    pieces = vocabulary.pop("pieces")
    facts = {"class_names": list(pieces), "in_shape": [100, 40], "mean": [], "std": [], "encoding": None}
    facts |= {"vocabulary": vocabulary, "masked": None}
    content = pack_order(
        Order(1, 0, 0.1, "ab" * 32, 0), pack_blob(b""), facts=pack_blob(json.dumps(facts).encode())
    )
    grid = node("data=speech data.root=x model=las attack=none", 1, data_root=str(tmp_path))
    assert is_fixed(send(grid, content))


@pytest.mark.parametrize("kind", [TRAIN, LOCATE, OFFER, SHARE, ENDORSE, UNMASK])
@pytest.mark.parametrize(
    "overrides", ["", "model._target_=os.system", "defense=fl_std secagg=on", "x=[", "'"]
)
def test_whatever_is_asked_of_a_node_its_refusal_is_a_fixed_text(kind, overrides):
    reply = send(node(overrides), pack_order(Order(1, 0, 0.1, "ab" * 32, 0), pack_blob(b"x")), kind)
    assert is_fixed(reply)
    assert code_of(reply) in TEXTS


def test_details_are_in_the_nodes_own_log(clinic, caplog):
    grid = node("model._target_=os.system", data_root=str(clinic))
    send(grid, order(mlp([1], 2), model_of(mlp([1], 2)), facts="{}"))
    assert "os.system" in caplog.text


@pytest.mark.parametrize("place", ["folder", "file"])
def test_a_log_that_cannot_be_written_tells_no_path_and_lets_nothing_leave(place, tmp_path):
    occupied = tmp_path / "secret-place"
    occupied.mkdir() if place == "folder" else occupied.write_text("")
    log = str(occupied if place == "folder" else occupied / "log")
    text = f"{SMALL} model=mlp model.hidden=[8] defense=none"
    parts = parts_of(text)
    for overrides in (text, f"{text} batch_size=1"):
        reply = send(node(overrides, policy_log=log), order(parts.model, model_of(parts.model)))
        assert is_fixed(reply)
        assert "secret-place" not in reply.error.reason


def test_a_policy_of_the_environment_holds_on_a_node_that_trusts_its_runs(tmp_path, monkeypatch):
    file = tmp_path / "policy.toml"
    file.write_text("min_batch = 64\n")
    text = f"{SMALL} model=mlp model.hidden=[8] defense=none batch_size=8"
    parts = parts_of(text)
    content = order(parts.model, model_of(parts.model))
    assert code_of(send(node(text, trust_config=True), content)) is None
    monkeypatch.setenv("FL_APP_POLICY", str(file))
    assert "[batch]" in send(node(text, trust_config=True), content).error.reason


def test_exchanges_of_secure_aggregation_are_in_the_log(tmp_path):
    overrides = (
        "defense=fl_std secagg=on rounds=1 batch_size=8 clients=3 data.size=12 model=mlp model.hidden=[8]"
    )
    grid = InlineGrid(
        app,
        3,
        run_config={"overrides": f"{FEW} {overrides}"},
        node_config={**DEPLOYED, "policy-log": str(tmp_path / "log")},
    )
    train(overrides, grid=grid)
    lines = list(read_journal(tmp_path / "log"))
    kinds = [line["kind"] for line in lines if line["allowed"]]
    assert {kind: kinds.count(kind) for kind in (OFFER, SHARE, TRAIN, UNMASK)} == {
        OFFER: 3,
        SHARE: 3,
        TRAIN: 3,
        UNMASK: 3,
    }
    assert all(line["bytes"] > 0 for line in lines)
