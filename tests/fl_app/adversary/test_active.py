"""A malicious server in the federation: what it gets, and that the honest training never notices."""

import json
import logging
from dataclasses import replace

import pytest
import torch
from federations import SMALL
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from shipped import shipped

from fl_app.adversary.active import ActiveServer
from fl_app.adversary.passive import SUM, PassiveServer
from fl_app.adversary.sightings import load_sightings, save_sightings
from fl_app.client_app import app
from fl_app.config.build import ServerParts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.experiments.job import run_job
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.models import ModelSpec, build_model
from fl_app.running.federation import watch
from fl_app.wire.messages import TRAIN, read_order

ROB = "attack=rob attack.bins=16 attack.rounds=[2] attack.clients=[3] audit.batch_size=4 rounds=3"
MLP = "model=mlp attack=curious attack.rounds=[2] attack.clients=[3] audit.batch_size=2 rounds=3"
DEFENSES = shipped("defense")


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


class Absent(ClientApp):
    """The real client app, in which one client does not hear the training order of one round."""

    def __init__(self, client: int, round: int) -> None:
        super().__init__()
        self._missing = (round, client)

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == TRAIN:
            order = read_order(message)
            if (order.round, order.client) == self._missing:
                return Message(Error(1, "absent"), reply_to=message)
        return app(message, context)


def federate(
    overrides: str, client_app: ClientApp = app, *, allow_audit: bool = True
) -> tuple[ServerParts, PassiveServer, InlineGrid]:
    text = f"{SMALL} {overrides}"
    parts = server_parts(text)
    tap = watch(parts)
    grid = InlineGrid(
        client_app,
        parts.config["clients"],
        run_config={"overrides": text},
        node_config={"allow-audit": allow_audit},
    )
    parts.strategy.start(
        grid=TappedGrid(grid, tap),
        initial_arrays=hold({name: t.clone() for name, t in parts.model.state_dict().items()}),
        num_rounds=parts.config["rounds"],
    )
    return parts, tap, grid


@pytest.mark.parametrize("attack", [ROB, MLP], ids=["imprint", "traps"])
@pytest.mark.parametrize("defense", ["none", "dgp", "adgp", "precode"])
def test_the_honest_training_goes_on_as_if_the_attacked_client_had_not_been_there(attack, defense):
    attacked, tap, _ = federate(f"{attack} defense={defense}")
    assert isinstance(tap, ActiveServer)
    model = next(word for word in f"{attack} model=lenet".split() if word.startswith("model="))
    without, _, _ = federate(f"defense={defense} {model} rounds=3", Absent(3, 2))
    assert attacked.strategy.weights.keys() == without.strategy.weights.keys()
    for name, tensor in attacked.strategy.weights.items():
        assert torch.equal(tensor, without.strategy.weights[name]), name
    rows = attacked.strategy.records
    assert [row.attacked for row in rows] == [[], [3], []]
    assert [row.clients for row in rows] == [5, 4, 5]
    assert not any(row.failures for row in rows)


@pytest.mark.parametrize("defense", DEFENSES)
def test_every_defense_answers_a_manipulated_model_or_says_why_not(defense):
    parts, tap, _ = federate(
        f"{ROB} defense={defense} attack.rounds=[1] attack.clients=[1] clients=2 rounds=1 lr=0.01"
    )
    row = parts.strategy.records[-1]
    if getattr(parts.strategy, "coordinates", None) is not None:  # they are those of the honest model
        assert not tap.sightings
        assert [failure.client for failure in row.failures] == [1]
        assert any("did not train on the manipulated model" in note for note in tap.notes)
        return
    (sighting,) = tap.sightings
    assert row.attacked == [1]
    assert not row.failures
    assert sighting.manipulated is not None
    assert sighting.truth is not None
    assert sighting.update["imprint.rows.weight"].shape == (16, 3072)
    assert sighting.update.keys() == sighting.weights.keys() == sighting.raw.keys()


def test_an_update_that_diverged_is_no_sighting_and_stops_nothing(caplog):
    with caplog.at_level(logging.WARNING, logger="fl_app"):
        parts, tap, _ = federate(f"{ROB} defense=fl_cs lr=1e6")
    assert not tap.sightings
    assert "client 3 cannot be attacked: values holds NaN or infinity" in caplog.text
    assert [row.round for row in parts.strategy.records] == [1, 2, 3]


def test_what_the_update_gives_away_is_the_batch(tmp_path):
    folder = run_job([*SMALL.split(), *ROB.split(), "baseline=false", "defense=none"], folder=tmp_path)
    result = json.loads((folder / "result.json").read_text())
    (entry,) = result["attacks"]
    assert entry["manipulated"]
    assert entry["batch_size"] == 4
    exact = [value for value in entry["psnr"] if value is not None]
    assert len(exact) >= 3
    assert min(exact) > 70
    assert [row["attacked"] for row in result["rounds"]] == [[], [3], []]


class Garbled(ClientApp):
    """The real client app, in which one client's reply to a training order cannot be read."""

    def __call__(self, message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == TRAIN and read_order(message).client == 3:
            reply.content = RecordDict({"noise": ConfigRecord({"n": 1})})
        return reply


def test_an_attacked_client_that_answers_with_garbage_stops_nothing():
    parts, tap, _ = federate(f"{ROB} defense=none", Garbled())
    assert [row.clients for row in parts.strategy.records] == [4, 4, 4]
    assert all([f.client for f in row.failures] == [3] for row in parts.strategy.records)
    assert not tap.sightings


def test_an_attacked_client_is_charged_for_what_it_released():
    private = "defense=dp_sgd rounds=2"
    attacked, _, _ = federate(f"{private} attack=rob attack.bins=16 attack.rounds=all attack.clients=all")
    honest, _, _ = federate(private)
    charged = [row.epsilon for row in attacked.strategy.records]
    assert charged == [row.epsilon for row in honest.strategy.records]
    assert charged[0] > 0
    assert [row.clients for row in attacked.strategy.records] == [0, 0]


def test_a_client_that_allows_no_audit_takes_no_manipulated_model():
    parts, tap, _ = federate(f"{ROB} defense=none", allow_audit=False)
    (failure,) = parts.strategy.records[1].failures
    assert failure.client == 3
    assert "refuses a manipulated model" in failure.reason
    assert parts.strategy.records[1].clients == 4
    assert not tap.sightings
    assert any("client 3 did not train on the manipulated model" in note for note in tap.notes)


def test_a_pinned_client_refuses_another_architecture_but_cannot_tell_other_weights():
    parts, _, _ = federate(f"{ROB} defense=none client.pin_model=true")
    (failure,) = parts.strategy.records[1].failures
    assert failure.client == 3
    assert "pinned to" in failure.reason
    parts, tap, _ = federate(f"{MLP} defense=none client.pin_model=true")
    assert not any(row.failures for row in parts.strategy.records)
    assert len(tap.sightings) == 1


@pytest.mark.parametrize("attack", [ROB, MLP], ids=["imprint", "traps"])
def test_a_client_that_looks_refuses_and_names_layer_and_reason(attack):
    parts, tap, _ = federate(f"{attack} defense=none client.inspect=refuse")
    first, second, third = parts.strategy.records
    assert not first.failures
    assert not third.failures
    (failure,) = second.failures
    assert failure.client == 3
    assert "refuses a suspicious model" in failure.reason
    assert any(check in failure.reason for check in ("rank one", "even signs"))
    assert ">" in failure.reason
    assert not tap.sightings


def test_a_client_that_only_warns_trains(caplog):
    with caplog.at_level(logging.WARNING, logger="fl_app"):
        _parts, tap, _ = federate(f"{ROB} defense=none client.inspect=warn")
    warned = [r.getMessage() for r in caplog.records if "suspicious model" in r.getMessage()]
    assert len(warned) == 1
    assert "client 3, round 2" in warned[0]
    assert "imprint.rows" in warned[0]
    assert len(tap.sightings) == 1


def test_a_client_remembers_the_honest_model_and_one_other():
    _, _, grid = federate(f"{ROB} defense=dgp attack.rounds=[1,2,3]")
    names = {name.split("/")[0] for name in grid.context(list(grid.get_node_ids())[3]).state if "/" in name}
    assert len(names) <= 2


def test_under_secure_aggregation_a_client_refuses_what_was_not_agreed_on():
    parts, tap, _ = federate(f"{ROB} defense=fl_std secagg=on rounds=2 secagg.min_clients=3")
    row = parts.strategy.records[1]
    assert row.clients == 4
    assert 3 in {failure.client for failure in row.failures}
    assert not [s for s in tap.sightings if s.order.client != SUM and s.manipulated]


def test_local_steps_are_read_too():
    _parts, tap, _ = federate(f"{ROB} defense=none strategy=fed_avg training.steps=1")
    (sighting,) = tap.sightings
    assert sighting.answer.steps >= 1
    assert sighting.update["imprint.rows.bias"].any()


def test_what_was_seen_can_be_kept_and_read_again(tmp_path):
    parts, tap, _ = federate(f"{ROB} defense=dgp attack.rounds=[2,3] attack.clients=[1,3]")
    save_sightings(tmp_path, tap.sightings, parts.spec, parts.public)
    again, spec, _ = load_sightings(tmp_path)
    assert spec == parts.spec
    assert len(again) == 4
    for one, other in zip(
        sorted(tap.sightings, key=lambda s: (s.order.round, s.order.client)), again, strict=False
    ):
        assert one.order == other.order
        assert one.manipulated == other.manipulated
        for part in ("weights", "update", "raw"):
            ours, theirs = getattr(one, part), getattr(other, part)
            assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_model_that_cannot_be_manipulated_is_an_error_before_the_first_round():
    with pytest.raises(ConfigError, match=r"attack: trap_weights: .*stride 1"):
        server_parts(f"{SMALL} attack=curious model=lenet")
    with pytest.raises(ConfigError, match="attack: imprint: quantiles of 1000 bins need"):
        server_parts(f"{SMALL} attack=rob attack.bins=1000")


def test_manipulations_are_built_only_where_they_are_let_in():
    spec = ModelSpec("fl_app.models.mlp", {"num_classes": 2, "in_shape": [1, 2, 2], "hidden": [8]})
    edges = {"in_shape": [1, 2, 2], "functional": "mean", "edges": [0.0], "floor": -9.0}
    other = spec.manipulated(3, {"imprint": edges})
    assert other.is_manipulated
    assert not spec.is_manipulated
    assert other.hash != spec.hash
    assert not other.looks_like(spec)
    assert spec.manipulated(3, {}).looks_like(spec)
    assert spec.manipulated(3, {}).hash != spec.manipulated(4, {}).hash
    with pytest.raises(ValueError, match="extensions must be among bottleneck; got apart, imprint"):
        build_model(other)
    assert "imprint.rows.weight" in build_model(other, manipulated=True).state_dict()
    strange = replace(spec, extensions={"os.system": {}})
    with pytest.raises(ValueError, match="extensions must be among"):
        build_model(strange, manipulated=True)
