"""A run as `flwr run .` starts it: keys of the run config, as many clients as there are nodes."""

import json
import logging
import os
from pathlib import Path

import pytest
import torch
from federations import SMALL, train
from flwr.app import Context, Message, RecordDict

from fl_app.client_app import app as client_app
from fl_app.flower import InlineGrid
from fl_app.flower.own_nodes import OWN_NODE
from fl_app.server_app import app as server_app
from fl_app.training import class_logits
from fl_app.wire.messages import EVALUATE, Order, pack_blob, pack_order, read_metrics

TEXT = "data.train_per_class=8 data.test_per_class=4 batch_size=4 threads=1 model=mlp model.hidden=[4]"


def run(folder, nodes, **keys):
    config = {"overrides": f"{TEXT} run_dir={folder}", "clients": "auto", **keys}
    grid = InlineGrid(client_app, nodes, run_config=config)
    server_app(grid, Context(1, 0, dict(OWN_NODE), RecordDict(), dict(config)))
    return json.loads((Path(folder) / "result.json").read_text())


def test_keys_of_the_run_config_and_the_nodes_that_are_there_make_the_run(tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, logger="flwr"):
        result = run("run", 3, defense="topk", attack="none", lr=0.2, **{"num-server-rounds": 2})
    assert result["config"]["clients"] == 3
    assert [row["clients"] for row in result["rounds"]] == [3, 3]
    assert (result["config"]["lr"], result["config"]["choices"]["defense"]) == (0.2, "topk")
    (said,) = [r.getMessage() for r in caplog.records if r.name == "flwr" and "report: " in r.getMessage()]
    path = said.split("report: ")[1]
    assert os.path.isabs(path)
    assert Path(path).is_file()


def test_clients_evaluate_on_their_own_samples_and_the_report_shows_it(tmp_path):
    overrides = f"{TEXT} run_dir={tmp_path / 'run'} fraction_evaluate=1.0"
    result = run(tmp_path / "run", 3, attack="none", overrides=overrides, **{"num-server-rounds": 1})
    (row,) = result["rounds"]
    assert 0 <= row["client_accuracy"] <= 1
    assert row["client_loss"] > 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert f"{row['client_accuracy']:.1%}".rstrip("%") in page


def test_what_clients_measure_is_the_mean_over_their_samples():
    parts, _ = train("fraction_evaluate=1.0 clients=2 rounds=1 defense=none model=mlp model.hidden=[4]")
    model = parts.model
    model.load_state_dict(parts.strategy.weights | parts.strategy.buffers)
    model.eval()
    samples, data = parts.dataset.train, parts.dataset
    inputs = (samples.inputs.float() / 255 - torch.tensor(data.mean).view(-1, 1, 1)) / torch.tensor(
        data.std
    ).view(-1, 1, 1)
    right = (class_logits(model(inputs)).argmax(1) == samples.labels).float().mean().item()
    assert parts.strategy.records[0].client_accuracy == pytest.approx(right, abs=1e-6)


@pytest.mark.parametrize("extra", ["dp=client defense=fl_std dp.epsilon=100", "secagg=on defense=fl_std"])
def test_evaluation_by_clients_is_refused_beside_noise_or_masks(extra):
    with pytest.raises(ValueError, match="fraction_evaluate"):
        train(f"fraction_evaluate=1.0 rounds=1 model=mlp model.hidden=[4] {extra}")


def test_a_node_that_does_not_trust_its_run_evaluates_nothing():
    config = {"overrides": f"{SMALL} defense=none"}
    grid = InlineGrid(client_app, 1, run_config=config, node_config={"trust-config": False})
    order = pack_order(Order(1, 0, 0.1, "ab" * 32, 0), pack_blob(b"no model"))
    (reply,) = grid.send_and_receive([Message(order, 1000, EVALUATE)])
    with pytest.raises(ValueError, match=r"\[metrics\]"):
        read_metrics(reply)
