"""Secure aggregation around Flower's strategies: the same models, dropouts in every exchange, refusals."""

import flwr.serverapp.strategy as flower
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from foreign_apps import ask, federate, message_app
from own_apps import CLIENTS, client_of, started
from torch import nn

from fl_app.flower import InlineGrid
from fl_app.mods import secure_mod, topk_mod
from fl_app.mods.secure_job import RECORD
from fl_app.strategies import SecureAggregation
from fl_app.wire.messages import OFFER, SHARE, UNMASK

ALL = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0}
ROWS = [10 + 4 * client for client in range(CLIENTS)]
MOST = max(ROWS)
STEP = 2.0**-20
QUANTISED = CLIENTS * STEP / 2 / (sum(ROWS) / MOST)
"""Largest error of an entry of the mean: half a step of each client, over their weights together."""
MODS = [secure_mod(max_weight=MOST)]


def wrapped(strategy, **options):
    return SecureAggregation(min_clients=3).wrap(strategy, **({"max_weight": MOST} | options))


def apart(one, other):
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def dropping(*when):
    """Return a mod that fails for the given (client, exchange)."""

    def drop(message, context, call_next):
        exchange = message.content[RECORD]["exchange"]
        if (client_of(context), exchange) in when:
            raise RuntimeError("gone")
        return call_next(message, context)

    return drop


class Watched(flower.FedAvg):
    """FedAvg that keeps what it was given."""

    def __init__(self, **options):
        super().__init__(**options)
        self.given = []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.given.append(replies)
        return flower.FedAvg.aggregate_train(self, server_round, replies)


@pytest.mark.parametrize("name", ["FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedYogi", "FedAdagrad"])
def test_the_model_is_that_of_the_unmasked_strategy_within_the_quantisation_step(name):
    options = ALL | ({"proximal_mu": 0.1} if name == "FedProx" else {})
    options |= {"tau": 0.1} if name in ("FedAdam", "FedYogi", "FedAdagrad") else {}
    make = getattr(flower, name)
    plain = federate(message_app(), make(**options), rounds=1)
    secret = federate(message_app(MODS), wrapped(make(**options)), rounds=1)
    # adaptive steps multiply an error of the mean by at most the server's rate over tau
    assert apart(plain, secret) < (QUANTISED + 1e-7) * (3 if "tau" in options else 1)
    several = federate(message_app(MODS), wrapped(make(**options)), rounds=3)
    assert apart(federate(message_app(), make(**options), rounds=3), several) < 1e-4


def test_no_message_but_the_sum_holds_an_update():
    seen = []

    class Tapped(SecureAggregation):
        def finish(self, ask, masked):
            seen.append(masked)
            return super().finish(ask, masked)

    replies = []

    def look(message, context, call_next):
        reply = call_next(message, context)
        replies.append(reply.content)
        return reply

    federate(
        message_app([look, *MODS]),
        Tapped(min_clients=3).wrap(flower.FedAvg(**ALL), max_weight=MOST),
        rounds=1,
    )
    assert len(replies) == 4 * CLIENTS
    assert all(list(content) == [RECORD] and list(content[RECORD]) == ["blob"] for content in replies)
    bits = torch.tensor(list(seen[0][0][200:]), dtype=torch.float64)
    assert abs(float(bits.mean()) - 127.5) < 15  # uniform bytes


@pytest.mark.parametrize("exchange", [OFFER, SHARE, "mask", UNMASK])
def test_a_client_may_vanish_in_any_exchange(exchange):
    mods = [dropping((1, exchange)), *MODS]
    after = federate(message_app(mods), wrapped(flower.FedAvg(**ALL)), rounds=1)
    # who vanishes before its vector came is left out of the mean
    counted = [client for client in range(CLIENTS) if client != 1 or exchange == UNMASK]

    def left_out(message, context, call_next):
        if client_of(context) not in counted:
            raise RuntimeError("gone")
        return call_next(message, context)

    plain = federate(message_app([left_out]), flower.FedAvg(**ALL), rounds=1)
    assert apart(plain, after) < QUANTISED * 2 + 1e-7


def test_a_round_with_too_few_clients_leaves_the_model_and_the_next_one_goes_on():
    strategy = Watched(**ALL)
    gone = dropping((0, "mask"), (1, "mask"))
    start = started().state_dict()
    after = wrapped(strategy, takes_mean=True).start(
        grid=InlineGrid(message_app([gone, *MODS]), CLIENTS),
        initial_arrays=ArrayRecord(start),
        num_rounds=2,
    )
    assert not after.train_metrics_clientapp
    assert [sum(reply.has_error() for reply in replies) for replies in strategy.given] == [2, 2]


def test_metrics_are_averaged_under_the_masks_and_no_others_arrive():
    strategy = Watched(**ALL)
    mods = [secure_mod(max_weight=MOST, metrics=["train_loss"])]
    federate(message_app(mods), wrapped(strategy, metrics=["train_loss"], takes_mean=True), rounds=1)
    plain = Watched(**ALL)
    federate(message_app(), plain, rounds=1)
    metrics = strategy.given[0][0].content["metrics"]
    assert set(metrics) == {"num-examples", "train_loss"}
    assert metrics["num-examples"] == pytest.approx(sum(ROWS), abs=1e-3)
    replies = [reply.content["metrics"] for reply in plain.given[0]]
    mean = sum(m["train_loss"] * m["num-examples"] for m in replies) / sum(ROWS)
    assert metrics["train_loss"] == pytest.approx(mean, abs=1e-5)


def test_a_weight_above_the_bound_counts_as_the_bound():
    strategy, low = Watched(**ALL), min(ROWS)
    federate(
        message_app([secure_mod(max_weight=low)]),
        wrapped(strategy, max_weight=low, takes_mean=True),
        rounds=1,
    )
    assert strategy.given[0][0].content["metrics"]["num-examples"] == pytest.approx(low * CLIENTS, abs=1e-3)


def test_changes_are_averaged_as_they_come_and_pruned_before_they_are_masked():
    mods = [secure_mod(max_weight=MOST, returns="delta"), topk_mod(0.2, returns="delta")]
    strategy = Watched(**ALL)
    federate(
        message_app(mods, returns="delta"), wrapped(strategy, returns="delta", takes_mean=True), rounds=1
    )
    plain = Watched(**ALL)
    federate(message_app([topk_mod(0.2, returns="delta")], returns="delta"), plain, rounds=1)
    replies = [(r.content["arrays"].to_torch_state_dict(), r.content["metrics"]) for r in plain.given[0]]
    mean = strategy.given[0][0].content["arrays"].to_torch_state_dict()
    for name, tensor in mean.items():
        expected = sum(arrays[name] * m["num-examples"] for arrays, m in replies) / sum(ROWS)
        assert float((tensor - expected).abs().max()) < QUANTISED + 1e-7


def test_statistics_are_averaged_and_counters_stay():
    def with_norm():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    plain = federate(message_app(net=with_norm), flower.FedAvg(**ALL), rounds=1, net=with_norm)
    secret = federate(
        message_app(MODS, net=with_norm), wrapped(flower.FedAvg(**ALL)), rounds=1, net=with_norm
    )
    assert int(secret.pop("1.num_batches_tracked")) == 0
    assert apart(secret, plain) < QUANTISED + 1e-6


@pytest.mark.parametrize("name", ["Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg", "QFedAvg"])
def test_a_strategy_that_needs_single_updates_is_refused(name):
    options = {"client_learning_rate": 0.1} if name == "QFedAvg" else {}
    options |= {"num_malicious_nodes": 0} if name == "Bulyan" else {}
    with pytest.raises(ValueError, match=name):
        wrapped(getattr(flower, name)(**options))


def test_a_privacy_wrapper_and_a_strategy_of_ones_own_are_refused_unless_said_otherwise():
    clipped = flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(), 1.0, 1.0, 4)
    for strategy in (clipped, Watched()):
        with pytest.raises(ValueError):
            wrapped(strategy)
    wrapped(Watched(), takes_mean=True)
    with pytest.raises(TypeError):
        wrapped(object())


def test_a_client_refuses_training_without_masks_and_settings_that_differ():
    plain = ask(message_app(MODS), RecordDict({"arrays": ArrayRecord(started().state_dict())}))[0]
    assert plain.has_error()
    trained = []

    def note(message, context, call_next):
        trained.append(1)
        return call_next(message, context)

    start = started().state_dict()
    app = message_app([secure_mod(max_weight=MOST + 1), note])
    after = wrapped(flower.FedAvg(**ALL)).start(
        grid=InlineGrid(app, CLIENTS),
        initial_arrays=ArrayRecord(start),
        num_rounds=1,
    )
    assert not trained
    assert not after.train_metrics_clientapp


def test_a_client_does_not_answer_under_two_numbers():
    app = message_app(MODS)
    content = RecordDict({RECORD: ConfigRecord({"exchange": OFFER, "client": 1, "blob": b"x"})})
    other = RecordDict({RECORD: ConfigRecord({"exchange": OFFER, "client": 2, "blob": b"x"})})
    grid = InlineGrid(app, 1)
    node = next(iter(grid.get_node_ids()))
    replies = [
        next(iter(grid.send_and_receive([Message(one, node, "train")]))).error.reason
        for one in (content, other)
    ]
    assert "number" in replies[1]
    assert "number" not in replies[0]


def test_a_mod_that_reads_updates_is_refused_before_secure_mod():
    content = RecordDict({"arrays": ArrayRecord(started().state_dict()), "m": MetricRecord({"n": 1})})
    reply = ask(message_app([topk_mod(0.2), *MODS]), content)[0]
    assert "secure_mod" in reply.error.reason
