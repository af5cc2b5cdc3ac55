"""A ClientApp of one's own with every strategy; Flower's FedAvg and a plain loop are the oracles."""

import inspect
from contextlib import suppress

import flwr.serverapp.strategy as flower
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from own_apps import CLIENTS, client_of, differentiate, evaluate, net, rows, started, train
from torch import nn
from torch.nn import functional as F

from fl_app import strategies
from fl_app.client import SecureSettings, app
from fl_app.defenses import fl_basic, fl_cs, fl_std, fl_top, soteria
from fl_app.flower import InlineGrid, TappedGrid
from fl_app.privacy import ClientLevel
from fl_app.secagg import create_identities
from fl_app.strategies import (
    ADGP,
    FLCS,
    FedAvg,
    FedSGD,
    FLBasic,
    FLStd,
    FLTop,
    NoUpdateUsed,
    SecureAggregation,
)
from fl_app.training import parameters
from fl_app.transforms import error_feedback, prune_aligned, prune_dual
from fl_app.types import RoundContext

PUBLIC = rows(50)


def run(strategy, client_app, rounds=3, clients=CLIENTS, **config):
    with suppress(NoUpdateUsed):  # callers look at the records
        return strategy.start(
            grid=InlineGrid(client_app, clients),
            initial_arrays=ArrayRecord(started().state_dict()),
            num_rounds=rounds,
            **config,
        )


def weights_of(result):
    return {name: torch.from_numpy(array.numpy().copy()) for name, array in result.arrays.items()}


def failures(strategy):
    return [failure for record in strategy.records for failure in record.failures]


def flat(weights):
    return torch.cat([tensor.flatten() for tensor in weights.values()])


def flower_app():
    made = ClientApp()

    @made.train()
    def answer(message, context):
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        samples, metrics = train(model, context, dict(message.content["config"]))
        records = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": samples, **metrics}),
        }
        return Message(RecordDict(records), reply_to=message)

    return made


def test_fed_avg_is_flowers_own():
    theirs = flower.FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
    expected = run(theirs, flower_app(), train_config=ConfigRecord({"lr": 0.1}))
    got = run(FedAvg(net(), 0.1), app(net, train))
    torch.testing.assert_close(weights_of(got), weights_of(expected), rtol=0, atol=1e-6)
    for round in (1, 2, 3):
        mine, other = (result.train_metrics_clientapp[round]["train_loss"] for result in (got, expected))
        assert mine == pytest.approx(other, abs=1e-6)
    assert got.train_metrics_clientapp[1]["num-examples"] == sum(len(rows(c)[0]) for c in range(CLIENTS))


def test_dgp_is_a_plain_loop():
    defense = error_feedback(prune_dual(0.1, 0.3))
    got = run(FedSGD(net(), 0.1), app(net, differentiate, defense=defense), rounds=4)
    model, states = started(), {}
    for round in range(1, 5):
        total, samples = None, 0
        for client in range(CLIENTS):
            x, y = rows(client)
            grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
            update = dict(zip(parameters(model), grads, strict=True))
            ctx = RoundContext(round, client, torch.Generator())
            sent, states[client] = defense.apply(update, states.get(client) or defense.init(update), ctx)
            total = {n: len(x) * g + (0 if total is None else total[n]) for n, g in sent.items()}
            samples += len(x)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= 0.1 * total[name] / samples
    torch.testing.assert_close(weights_of(got), dict(model.state_dict()), rtol=0, atol=1e-6)


def test_a_gradient_is_the_same_whether_the_optimiser_steps_or_not():
    def step(model, context, config):
        said = differentiate(model, context, config)
        torch.optim.SGD(model.parameters(), lr=config["lr"]).step()
        return said

    left, stepped = (run(FedSGD(net(), 0.1), app(net, function)) for function in (differentiate, step))
    torch.testing.assert_close(weights_of(left), weights_of(stepped), rtol=0, atol=1e-6)


VECTORS = {
    "fl_std": (lambda **more: FLStd(net(), 0.1, **more), fl_std()),
    "fl_basic": (lambda **more: FLBasic(net(), 0.1, share=0.3, **more), fl_basic(0.3)),
    "fl_cs": (lambda **more: FLCS(net(), 0.1, share=0.3, **more), fl_cs(0.3)),
    "fl_top": (lambda **more: FLTop(net(), 0.1, share=0.3, public=PUBLIC, **more), fl_top(0.3)),
    "fl_top by vote": (
        lambda **more: FLTop(net(), 0.1, share=0.3, chosen_by="vote", **more),
        fl_top(0.3, chosen_by="vote"),
    ),
}
OTHERS = {
    "adgp": (lambda: ADGP(net(), 0.1, k=0.3), error_feedback(prune_aligned(0.3, 0.1))),
    "adgp by vote": (lambda: ADGP(net(), 0.1, k=0.3, location="vote"), prune_aligned(0.3, 0.1)),
    "a change defended": (lambda: FedAvg(net(), 0.1), error_feedback(prune_dual(0.1, 0.3))),
}


@pytest.mark.parametrize("name", [*VECTORS, *OTHERS])
def test_every_strategy_trains_with_the_users_own_function(name):
    make, defense = (VECTORS | OTHERS)[name]
    strategy = make()
    got = weights_of(run(strategy, app(net, train, defense=defense), rounds=4))
    assert not failures(strategy)
    assert all(record.clients == CLIENTS for record in strategy.records)
    x, y = (torch.cat(part) for part in zip(*(rows(c) for c in range(CLIENTS)), strict=True))
    before, after = started(), net()
    after.load_state_dict(got)
    assert F.cross_entropy(after(x), y) < F.cross_entropy(before(x), y)


@pytest.mark.parametrize("public", [PUBLIC, lambda model: F.cross_entropy(model(PUBLIC[0]), PUBLIC[1])])
def test_fl_top_moves_its_coordinates_alone(public):
    strategy = FLTop(net(), 0.1, share=0.2, public=public)
    got = run(strategy, app(net, train, defense=fl_top(0.2)))
    moved = torch.nonzero(flat(weights_of(got)) != flat(started().state_dict())).flatten()
    assert 0 < len(moved) <= len(strategy.coordinates)
    assert set(moved.tolist()) <= set(strategy.coordinates.tolist())
    first, *rest = (record.downlink_bytes for record in strategy.records)
    assert max(rest) < first  # the whole model travels once


def test_weight_decay_under_fl_top_is_refused():
    def decaying(model, context, config):
        said = differentiate(model, context, config)
        torch.optim.SGD(model.parameters(), lr=config["lr"], weight_decay=0.1).step()
        return said

    strategy = FLTop(net(), 0.1, share=0.2, public=PUBLIC)
    run(strategy, app(net, decaying, defense=fl_top(0.2)), rounds=1)
    assert len(failures(strategy)) == CLIENTS
    assert all("weight decay" in failure.reason for failure in failures(strategy))


def test_a_secure_sum_is_the_plain_mean_and_survives_a_dropout():
    def vanishing(model, context, config):
        if client_of(context) == 1 and config["server-round"] == 2:
            raise ConnectionError("gone")
        return train(model, context, config)

    plain, secure = FLStd(net(), 0.1), FLStd(net(), 0.1, aggregation=SecureAggregation(min_clients=2))
    ends = [
        run(plain, app(net, vanishing, defense=fl_std()), clients=5),
        run(secure, app(net, vanishing, defense=fl_std(), secagg=SecureSettings(2)), clients=5),
    ]
    assert [record.clients for record in secure.records] == [5, 4, 5]
    torch.testing.assert_close(*map(weights_of, ends), rtol=0, atol=1e-4)


class Unlike:
    """An active server: all clients but the first are told other settings of the user's own function."""

    def __init__(self, told):
        self.told = told

    def on_send(self, message):
        config, first = (
            message.content.config_records.get("config"),
            message.metadata.dst_node_id == self.first,
        )
        if config is not None and not first:
            message.content["config"] = ConfigRecord({**config, **self.told})
        return message

    def on_reply(self, sent, reply):
        return reply


@pytest.mark.parametrize("told", [{"factor": 1e-3}, {"lr": 1e-4}, {"factor": 1}])
def test_no_client_masks_if_others_were_told_other_settings_of_their_function(tmp_path, told):
    """Settings that silence all clients but one would make the sum that one's vector."""

    def scaled(model, context, config):
        return train(model, context, {**config, "lr": config["lr"] * config["factor"]})

    create_identities(tmp_path, range(CLIENTS))
    strategy = FLStd(net(), 0.1, aggregation=SecureAggregation(min_clients=2, identities=tmp_path))
    tap = Unlike(told)
    grid = InlineGrid(app(net, scaled, defense=fl_std(), secagg=SecureSettings(2, tmp_path)), CLIENTS)
    tap.first = next(iter(grid.get_node_ids()))
    with suppress(NoUpdateUsed):
        strategy.start(
            grid=TappedGrid(grid, tap),
            initial_arrays=ArrayRecord(started().state_dict()),
            num_rounds=1,
            train_config=ConfigRecord({"factor": 1.0}),
        )
    refused = {f.client for f in failures(strategy) if "expected the job that was agreed on" in f.reason}
    assert refused == {1, 2, 3}
    assert strategy.records[0].clients == 0


@pytest.mark.parametrize("masked", [False, True])
def test_client_level_noise_is_added_and_charged(masked):
    privacy = ClientLevel(
        rounds=2, rate=1.0, clients=CLIENTS, epsilon=None, noise_multiplier=2.0, clip=0.5, thresholds=masked
    )
    strategy = FLTop(
        net(),
        0.1,
        share=0.3,
        public=PUBLIC,
        privacy=privacy,
        aggregation=SecureAggregation(min_clients=2) if masked else None,
    )
    secagg = SecureSettings(2) if masked else None
    client_app = app(net, train, defense=fl_top(0.3), privacy=privacy, secagg=secagg)
    first, second = (weights_of(run(strategy, client_app, rounds=1)) for _ in range(2))
    spent = strategy.privacy_spent()
    assert (spent.epsilon, spent.num_releases) == (strategy.records[-1].epsilon, len(strategy.records))
    assert (spent.delta, spent.accounting_method) == (privacy.delta, strategy.account.accountant)
    assert strategy.records[-1].epsilon > 0
    assert not torch.equal(flat(first), flat(second))
    assert strategy.records[0].train_loss is None


ONE, OTHER = (ClientLevel(rounds=2, rate=1.0, clients=CLIENTS, epsilon=e, clip=1.0) for e in (4.0, 8.0))


@pytest.mark.parametrize(("charged", "added"), [(ONE, None), (None, ONE), (ONE, OTHER)])
def test_noise_that_clients_do_not_add_is_never_charged(charged, added):
    strategy = FLStd(net(), 0.1, privacy=charged)
    run(strategy, app(net, train, defense=fl_std(), privacy=added), rounds=1)
    assert len(failures(strategy)) == CLIENTS
    assert all("privacy=ClientLevel" in failure.reason for failure in failures(strategy))


@pytest.mark.parametrize(
    ("make", "defense"),
    [
        (lambda: FLTop(net(), 0.1, share=0.3, public=PUBLIC), None),
        (lambda: FLStd(net(), 0.1), error_feedback(prune_dual(0.1, 0.3))),
        (lambda: FedAvg(net(), 0.1), fl_top(0.3)),
    ],
)
def test_a_strategy_that_does_not_go_with_the_defense_is_named_in_the_failures(make, defense):
    strategy = make()
    run(strategy, app(net, train, defense=defense), rounds=1)
    assert len(failures(strategy)) == CLIENTS
    assert all("fl_top goes with FLTop" in failure.reason for failure in failures(strategy))


def test_initial_arrays_of_another_shape_are_refused_before_anything_is_sent():
    other = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3)).state_dict()
    with pytest.raises(ValueError, match="initial_arrays must have the shapes"):
        FedAvg(net(), 0.1).start(InlineGrid(app(net, train), CLIENTS), ArrayRecord(other), num_rounds=1)


def test_parameters_that_are_frozen_stay_and_do_not_travel():
    def half():
        model = started(7)
        for p in model[0].parameters():
            p.requires_grad_(False)
        return model

    strategy = FedAvg(half(), 0.1)
    start = half().state_dict()
    result = strategy.start(InlineGrid(app(half, train), 3), ArrayRecord(start), num_rounds=2)
    got = weights_of(result)
    assert list(got) == ["2.weight", "2.bias", "0.weight", "0.bias"]
    assert all(torch.equal(got[name], start[name]) == name.startswith("0") for name in got)
    assert strategy.records[0].dense_bytes == 2 * 3 * 4 * (8 * 3 + 3)


def test_statistics_of_batch_norm_are_averaged():
    def normed():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    result = FedAvg(normed(), 0.05).start(
        InlineGrid(app(normed, train), 3), ArrayRecord(normed().state_dict()), num_rounds=1
    )
    got = weights_of(result)
    assert bool(got["1.running_mean"].any())
    assert got["1.num_batches_tracked"].dtype == torch.int64


class Tied(nn.Module):
    """Two names for one weight, a mask in the state, and positions that are none of the state."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.out.weight = self.into.weight
        self.register_buffer("mask", torch.arange(6) < 3)
        self.register_buffer("positions", torch.arange(6), persistent=False)

    def forward(self, x):
        return self.out(torch.relu(self.into(x)))[:, self.positions][:, self.mask]


@pytest.mark.parametrize(
    ("make", "defense"),
    [
        (lambda: FedAvg(Tied(), 0.1, fraction_evaluate=1.0), None),
        (lambda: FLTop(Tied(), 0.1, share=0.5, public=PUBLIC), fl_top(0.5)),
    ],
)
def test_tied_weights_travel_once_and_come_back_under_both_names(make, defense):
    strategy, start = make(), Tied().state_dict()
    made = app(Tied, train, defense=defense, evaluate=evaluate)
    result = strategy.start(InlineGrid(made, 3), ArrayRecord(start), num_rounds=2)
    assert [record.clients for record in strategy.records] == [3, 3]
    model = Tied()
    model.load_state_dict(weights_of(result))
    assert model.out.weight is model.into.weight
    assert not torch.equal(model.into.weight, start["into.weight"])
    assert torch.equal(model.mask, start["mask"])
    assert strategy.records[0].dense_bytes == 2 * 3 * 4 * (36 + 6)


def test_a_metric_may_be_a_loss_with_its_graph(recwarn):
    def telling(model, context, config):
        said = train(model, context, config)
        return said[0], {"loss": sum(p.sum() for p in model.parameters())}

    strategy = FedAvg(net(), 0.1)
    run(strategy, app(net, telling), rounds=1)
    assert strategy.records[0].train_loss is not None
    assert not [warning for warning in recwarn if "requires_grad" in str(warning.message)]


def test_a_run_in_which_no_update_was_used_fails_with_the_most_frequent_reason():
    def failing(model, context, config):
        if client_of(context) == 0:
            raise OSError("disk full")
        raise RuntimeError(f"node {client_of(context)} has no samples")

    strategy = FedAvg(net(), 0.1)
    grid = InlineGrid(app(net, failing), CLIENTS)
    with pytest.raises(NoUpdateUsed, match=r"FedAvg.* 2 rounds: .*has no samples.*6 of 8"):
        strategy.start(grid, ArrayRecord(started().state_dict()), num_rounds=2)
    assert len(strategy.records) == 2


def test_clients_evaluate_the_new_model_and_are_weighted_by_samples():
    strategy = FedAvg(net(), 0.1, fraction_evaluate=1.0)
    result = run(strategy, app(net, train, evaluate=evaluate), evaluate_config=ConfigRecord({"note": "x"}))
    model = net()
    model.load_state_dict(weights_of(result))
    x, y = (torch.cat(part) for part in zip(*(rows(c) for c in range(CLIENTS)), strict=True))
    expected = (model(x).argmax(1) == y).float().mean().item()
    assert result.evaluate_metrics_clientapp[3]["accuracy"] == pytest.approx(expected, abs=1e-6)


def test_the_train_config_reaches_the_function_and_must_not_contradict_the_strategy():
    seen = []

    def telling(model, context, config):
        seen.append(dict(config))
        return train(model, context, config)

    run(FedAvg(net(), 0.1), app(net, telling), rounds=1, train_config=ConfigRecord({"epochs": 2, "lr": 0.1}))
    assert seen[0] == {"epochs": 2, "lr": 0.1, "server-round": 1}
    for config in ({"lr": 0.2}, {"update": "gradient"}):
        with pytest.raises(ValueError, match="train_config"):
            run(FedAvg(net(), 0.1), app(net, train), train_config=ConfigRecord(config))
    with pytest.raises(ValueError, match="fraction_evaluate"):
        run(FedAvg(net(), 0.1), app(net, train), evaluate_config=ConfigRecord({"x": 1}))


@pytest.mark.parametrize(
    ("function", "word"),
    [
        (lambda model, context, config: None, "train must return"),
        (lambda model, context, config: (0, {}), "at least 1 sample"),
        (lambda model, context, config: (3, {"loss": "low"}), "train must return"),
        (differentiate, "FedSGD"),
    ],
)
def test_a_function_that_returns_something_else_is_named(function, word):
    strategy = FedAvg(net(), 0.1)
    run(strategy, app(net, function), rounds=1)
    assert all(word in failure.reason for failure in failures(strategy))
    assert len(failures(strategy)) == CLIENTS


def test_a_client_with_another_network_is_left_out():
    strategy = FedAvg(net(), 0.1)
    run(strategy, app(lambda: nn.Linear(6, 3), train), rounds=1)
    assert all("pinned" in failure.reason for failure in failures(strategy))
    assert len(failures(strategy)) == CLIENTS


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda: FedAvg("net", 0.1), TypeError),
        (lambda: FedAvg(net(), "0.1"), TypeError),
        (lambda: FedSGD(net(), 0.1, fraction_train="all"), TypeError),
        (lambda: FLTop(net(), 0.1, share=0.1), ValueError),
        (lambda: FLStd(net(), 0.1, privacy=ClientLevel(2, 1.0, 4)), ValueError),
        (lambda: FLStd(net(), 0.1, privacy=4.0), TypeError),
        (lambda: FLStd(net(), 0.1, aggregation=True), TypeError),
        (lambda: app("net", train), TypeError),
        (lambda: app(net, None), TypeError),
        (lambda: app(net, train, evaluate=3), TypeError),
        (lambda: app(net, train, mods=["message_size_mod"]), TypeError),
        (lambda: app(net, train, defense="dgp"), TypeError),
        (lambda: app(net, train, defense=fl_std(), secagg=True), TypeError),
        (lambda: app(net, train, defense=fl_std(), privacy=4.0), TypeError),
        (lambda: app(nn.ReLU, train), ValueError),
        (lambda: app(net, train, defense=soteria()), ValueError),
        (lambda: app(net, train, secagg=SecureSettings(2)), ValueError),
        (lambda: app(net, train, defense=fl_std(), secagg=SecureSettings(2), evaluate=evaluate), ValueError),
    ],
)
def test_arguments_that_cannot_work_are_refused_when_they_are_given(wrong, kind):
    with pytest.raises(kind, match=r"^(FedAvg|FedSGD|FLTop|FLStd|app):"):
        wrong()


@pytest.mark.parametrize("name", [name for name in strategies.__all__ if name[:2] in ("Fe", "FL", "AD")])
def test_constructors_show_every_keyword(name):
    kinds = {p.kind for p in inspect.signature(getattr(strategies, name)).parameters.values()}
    assert kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


def test_a_named_policy_guards_the_library_too(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text("min_samples = 12\nmax_movement = 100.0\n")
    strategy = FedAvg(net(), 0.1)
    grid = InlineGrid(app(net, train), CLIENTS, node_config={"policy": str(file)})
    result = strategy.start(grid, ArrayRecord(started().state_dict()), num_rounds=2)
    assert {failure.client for failure in failures(strategy)} == {0}  # it has ten samples
    assert all("[batch]" in failure.reason for failure in failures(strategy))
    assert "train_loss" not in result.train_metrics_clientapp[1]
