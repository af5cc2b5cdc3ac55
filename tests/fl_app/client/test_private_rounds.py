"""DP-SGD in a federation: every round has its epsilon, and nothing leaves without noise."""

import logging

import pytest
from federations import train, with_update
from flwr.app import Context, Message, RecordDict

from fl_app.client.vector_client import VectorClient
from fl_app.config.build import client_parts
from fl_app.models import build_model
from fl_app.policy import Refusal
from fl_app.privacy import Ledger, Release
from fl_app.training import parameters
from fl_app.wire import encode
from fl_app.wire.messages import Order, Parcel, Plan, Reply, pack_reply, unpack_reply

PRIVATE = "defense=dp_sgd clients=3"


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def releases(tap) -> list[Release]:
    return [unpack_reply(reply).release for _, reply in tap.exchanges]


def test_every_round_has_the_epsilon_of_all_rounds_so_far():
    federated, tap = train(f"{PRIVATE} rounds=4")
    epsilons = [record.epsilon for record in federated.strategy.records]
    ledger, expected = Ledger(), []
    for number, release in enumerate(releases(tap)):
        ledger.charge(number % 3, release)
        if number % 3 == 2:
            expected.append(ledger.epsilon())
    assert epsilons == expected
    assert epsilons == sorted(epsilons)
    assert 0.9 * 10.7 < epsilons[-1] <= 10.7
    assert [record.epsilon_server for record in federated.strategy.records] == epsilons


@pytest.mark.parametrize("strategy", ["strategy=fed_avg", "strategy=fed_avg training.steps=3"])
def test_local_steps_are_charged_each_and_stay_within_the_budget(strategy):
    federated, tap = train(f"{PRIVATE} rounds=2 {strategy}")
    assert 0.9 * 10.7 < federated.strategy.records[-1].epsilon <= 10.7
    assert all(release.steps > 1 for release in releases(tap))


def test_a_whole_noise_multiplier_is_a_number_like_others():
    federated, tap = train(f"{PRIVATE} rounds=1 defense.noise_multiplier=2")
    assert not federated.strategy.records[0].failures
    assert [release.noise_multiplier for release in releases(tap)] == [2.0] * 3


def test_without_differential_privacy_there_is_no_epsilon():
    federated, tap = train("defense=gaussian rounds=1")
    assert federated.strategy.records[0].epsilon is None
    assert releases(tap) == [None] * 5


def test_what_was_measured_on_the_data_stays_at_home():
    federated, tap = train(f"{PRIVATE} rounds=1")
    assert [unpack_reply(reply).metrics for _, reply in tap.exchanges] == [{}] * 3
    assert federated.strategy.records[0].train_loss is None


def test_a_client_whose_update_is_lost_is_charged_all_the_same():
    lost = {"rounds": 0}

    def garbled_after_the_first(order: Message, reply: Message, context: Context) -> Message:
        lost["rounds"] += 1
        return with_update(reply, b"?") if lost["rounds"] > 1 else reply

    def dies_after_the_first(order: Message, reply: Message, context: Context) -> Message:
        lost["rounds"] += 1
        if lost["rounds"] > 1:
            raise RuntimeError("disk on fire")
        return reply

    undisturbed, _ = train("defense=dp_sgd clients=1 rounds=3")
    for sabotage in (garbled_after_the_first, dies_after_the_first):
        lost["rounds"] = 0
        disturbed, _ = train("defense=dp_sgd clients=1 rounds=3", {0: sabotage})
        assert [record.clients for record in disturbed.strategy.records] == [1, 0, 0]
        assert disturbed.strategy.records[-1].epsilon == undisturbed.strategy.records[-1].epsilon


def test_an_impossible_release_is_the_clients_fault_and_nobody_elses():
    def claims(**changes):
        def sabotage(order: Message, reply: Message, context: Context) -> Message:
            content = pack_reply(unpack_reply(reply))
            for key, value in changes.items():
                content["release"][key] = value
            reply.content = content
            return reply

        return sabotage

    for changes in ({"noise_multiplier": -1.0}, {"sample_rate": 2.0}, {"steps": 0}, {"delta": 0.5}):
        federated, _ = train(f"{PRIVATE} rounds=1", {1: claims(**changes)})
        (record,) = federated.strategy.records
        assert [failure.client for failure in record.failures] == [1]
        assert record.clients == 2
        assert record.epsilon is not None


def answer_alone(settings: str) -> Reply:
    """Let a client answer one order for a model that the settings name, whatever a server would say of it."""
    small = "model=convnet data.train_per_class=2 data.test_per_class=1 defense=fl_std clients=5 threads=1"
    parts = client_parts(f"{small} {settings}")
    model = build_model(parts.model, allowed=[parts.model.target])
    plan = Plan(start="", coordinates="", seed=1, cohort=5, clip=1.0)
    parcel = Parcel(Order(1, 0, 0.1, parts.model.hash, 1), encode(parameters(model)), plan=plan)
    return VectorClient(parts, 0, 5, allow_audit=False).answer(parcel, RecordDict())[0]


@pytest.mark.parametrize("private", ["dp=client dp.clip=1", "secagg=on"])
def test_no_statistics_of_layers_leave_beside_a_private_vector(private):
    """A server refuses models with buffers before the run; an active one sends them nevertheless."""
    with pytest.raises(Refusal, match="statistics of layers"):
        answer_alone(f"model.norm=batch {private}")
    assert answer_alone("model.norm=batch").buffers
    assert answer_alone("model.norm=none dp=client dp.clip=1").update
