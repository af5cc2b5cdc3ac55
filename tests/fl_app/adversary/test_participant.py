"""A participant learns from models alone: with two clients the other's update, with more their mean."""

import json
import logging
from functools import cache

import pytest
import torch
from federations import SMALL
from hypothesis import given
from hypothesis import strategies as st

from fl_app.adversary.participant import Participant, without_share
from fl_app.adversary.passive import SUM
from fl_app.adversary.sightings import load_sightings, save_sightings
from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.config.compose import ConfigError, compose
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.running.federation import run_federation, watch
from fl_app.strategies.aggregate import undo
from fl_app.wire.messages import TRAIN, read_order, unpack_reply

BY = "attack=dlg attack.viewpoint=participant attack.by=1 audit.batch_size=2"


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


@cache
def watched(overrides, clients, viewpoint="participant"):
    """Return what one attacker saw in three rounds, by round."""
    text = f"{SMALL} {BY} defense=none clients={clients} rounds=3 {overrides} attack.viewpoint={viewpoint}"
    parts = server_parts(text)
    auditor = watch(parts)
    grid = TappedGrid(InlineGrid(app, clients, run_config={"overrides": text}), auditor)
    start = {name: t.clone() for name, t in parts.model.state_dict().items()}
    parts.strategy.start(grid=grid, initial_arrays=hold(start), num_rounds=3)
    return parts, auditor.sightings


def close(a, b, lr=0.1):
    """Say whether two updates are the same up to the rounding of weights, which a rate of 0.1 enlarges."""
    return all(float((a[name] - tensor).abs().max()) < 1e-5 / lr for name, tensor in b.items())


@pytest.mark.parametrize("downlink", ["change", "full"])
@pytest.mark.parametrize("strategy", ["fed_sgd", "fed_avg"])
def test_with_two_clients_the_participant_has_the_others_update(strategy, downlink):
    settings = f"strategy={strategy} strategy.downlink={downlink} attack.rounds=[2]"
    _, (own,) = watched(settings, 2)
    _, servers = watched(f"{settings} attack.clients=all", 2, "server")
    (true,) = [sighting for sighting in servers if sighting.order.client == 0]
    assert (own.order.client, own.summed, own.participant) == (0, 0, 1)
    assert own.answer.steps == true.answer.steps
    assert own.samples == 2
    assert close(own.update, true.update)
    assert all(torch.equal(own.weights[name], tensor) for name, tensor in true.weights.items())
    assert torch.equal(own.truth.inputs, true.truth.inputs)


def test_with_more_it_has_their_mean_and_all_of_them_are_the_truth():
    _, (own,) = watched("attack.rounds=[1]", 5)
    _, servers = watched("attack.rounds=[1] attack.clients=all", 5, "server")
    others = [sighting for sighting in servers if sighting.order.client != 1]
    assert (own.order.client, own.summed) == (SUM, 4)
    assert own.samples == len(own.truth.labels) == 8
    mean = {name: sum(s.update[name] for s in others) / 4 for name in own.update}
    assert close(own.update, mean)


def test_a_weight_decay_of_the_server_is_taken_off():
    settings = "strategy.weight_decay=0.1 attack.rounds=[1]"
    _, (own,) = watched(settings, 2)
    _, servers = watched(f"{settings} attack.clients=all", 2, "server")
    assert close(own.update, servers[0].update)


def test_every_round_but_the_last_is_seen():
    _, seen = watched("attack.rounds=all", 2)
    assert [sighting.order.round for sighting in seen] == [1, 2]


def test_what_the_other_pruned_is_zero_and_little_else():
    settings = "defense=topk defense.share=0.1 attack.rounds=[1]"
    _, (own,) = watched(settings, 2)
    _, servers = watched(f"{settings} attack.clients=all", 2, "server")
    sent, found = (torch.cat([t.flatten() for t in s.update.values()]) for s in (servers[0], own))
    assert not found[sent == 0].any()
    missed = (sent != 0) & (found == 0)
    assert missed.sum() < 0.01 * (sent != 0).sum()


def test_nothing_but_its_own_messages_is_read(monkeypatch):
    parts = server_parts(f"{SMALL} {BY} defense=none attack.rounds=[1]")
    opened = []
    monkeypatch.setattr(
        "fl_app.adversary.participant.unpack_reply", lambda m: opened.append(m) or unpack_reply(m)
    )
    auditor, owners = watch(parts), {}
    assert isinstance(auditor, Participant)
    passed = auditor.on_reply

    def note(sent, reply):
        if sent.metadata.message_type == TRAIN:
            owners[id(reply)] = read_order(sent).client
        return passed(sent, reply)

    auditor.on_reply = note
    text = f"{SMALL} {BY} defense=none attack.rounds=[1]"
    grid = TappedGrid(InlineGrid(app, 5, run_config={"overrides": text}), auditor)
    parts.strategy.start(grid=grid, initial_arrays=hold(parts.model.state_dict()), num_rounds=2)
    assert {owners[id(message)] for message in opened} == {1}


class Late:
    """Shows a participant nothing of the first round, as after a run was resumed."""

    def __init__(self, tap):
        self.tap = tap

    def shows(self, message):
        return message.metadata.message_type != TRAIN or read_order(message).round > 1

    def on_send(self, message):
        return self.tap.on_send(message) if self.shows(message) else message

    def on_reply(self, sent, reply):
        return self.tap.on_reply(sent, reply) if self.shows(sent) else reply


@pytest.mark.parametrize("downlink", ["change", "full"])
def test_a_participant_that_lost_track_says_so_until_it_gets_the_whole_model(downlink):
    text = f"{SMALL} {BY} defense=none clients=2 rounds=4 attack.rounds=all strategy.downlink={downlink}"
    parts = server_parts(text)
    auditor = watch(parts)
    grid = TappedGrid(InlineGrid(app, 2, run_config={"overrides": text}), Late(auditor))
    parts.strategy.start(grid=grid, initial_arrays=hold(parts.model.state_dict()), num_rounds=4)
    assert [sighting.order.round for sighting in auditor.sightings] == ([2, 3] if downlink == "full" else [])
    assert any("it attacks nobody" in note for note in auditor.notes) == (downlink == "change")


@given(
    st.lists(st.floats(-1, 1), min_size=3, max_size=3),
    st.floats(0.01, 1),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_the_others_mean_comes_back_from_two_models(updates, lr, own_samples, samples):
    own, other, weight = (torch.tensor([value], dtype=torch.float32) for value in updates)
    mean = (own_samples * own + samples * other) / (own_samples + samples)
    moved, rounding = undo({"w": weight}, {"w": weight - lr * mean}, lr)
    found = without_share(moved, rounding, {"w": own}, own_samples / samples)["w"]
    slack = (1 + own_samples / samples) * (float(rounding["w"]) + 1e-6)
    assert float((found - other).abs()) <= slack


def test_a_sighting_keeps_its_viewpoint_on_disk(tmp_path):
    parts, sightings = watched("attack.rounds=[2]", 2)
    save_sightings(tmp_path, sightings, parts.spec, parts.public)
    (again,), _, _ = load_sightings(tmp_path)
    assert again.participant == 1
    assert torch.equal(again.truth.inputs, sightings[0].truth.inputs)


def test_a_run_scores_the_participants_attack(tmp_path):
    text = f"{SMALL} {BY} model=lenet_sigmoid attack.steps=3 defense=none clients=2 audit.batch_size=1"
    text += f" run_dir={tmp_path}"
    run_federation(InlineGrid(app, 2, run_config={"overrides": text}), text)
    entries = json.loads((tmp_path / "result.json").read_text())["attacks"]
    assert {(entry["client"], entry["participant"], entry["update"]) for entry in entries} == {
        (0, 1, "defended")
    }
    assert all(len(entry["mse"]) == 1 for entry in entries)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("attack.viewpoint=neighbour", "attack.viewpoint: must be server or participant"),
        ("attack.by=5", "attack.by: must be one of at least two clients, got 5 of 5"),
        ("clients=1 attack.by=0", "at least two clients, got 0 of 1"),
        ("rounds=1", "needs the model of the round after the attacked one"),
        ("attack.rounds=last", "needs the model of the round after"),
        ("attack.rounds=all rounds=1", "needs the model of the round after"),
        ("fraction=0.5", "only if all take part"),
        ("strategy.momentum=0.9", "the server has no momentum"),
        ("defense=adgp", "strategy=fed_sgd or fed_avg alone, got defense=adgp"),
        ("defense=fl_top", "strategy=fed_sgd or fed_avg alone, got defense=fl_top"),
    ],
)
def test_refuses_where_a_participant_could_not_tell(overrides, message):
    with pytest.raises(ConfigError, match=message):
        compose(f"{SMALL} {BY} {overrides}")
