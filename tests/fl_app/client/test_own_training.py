"""Anything that a user's training function does to its model, and models of unusual shapes and types."""

import pytest
import torch
from flwr.app import ArrayRecord
from own_apps import CLIENTS, client_of, net, rows, started, train
from torch import nn
from torch.nn import functional as F

from fl_app.client import SecureSettings, app
from fl_app.defenses import fl_basic, fl_cs, fl_std, fl_top
from fl_app.flower import InlineGrid
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
from fl_app.transforms import error_feedback, keep_topk, prune_aligned, prune_dual

SHARE = 0.3


def federate(strategy, client_app, make=net, rounds=2):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        start = ArrayRecord(make().state_dict())
    return strategy.start(InlineGrid(client_app, CLIENTS), start, num_rounds=rounds)


def freezing(model, context, config):
    for p in model[0].parameters():
        p.requires_grad_(False)
    return train(model, context, config)


def growing(model, context, config):
    said = train(model, context, config)
    model.add_module("more", nn.Linear(3, 3))
    return said


def halving(model, context, config):
    said = train(model, context, config)
    if client_of(context) == 1:
        model.half()
    return said


def without_gradients(model, context, config):
    said = train(model, context, config)
    torch.set_grad_enabled(False)
    return said


def replacing(model, context, config):
    said = train(model, context, config)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    return said


@pytest.mark.parametrize("function", [growing, without_gradients, replacing])
def test_what_a_function_does_to_its_model_stays_in_its_round(function):
    ends = []
    for each in (function, train):
        strategy = FedAvg(net(), 0.1)
        ends.append(federate(strategy, app(net, each)).arrays)
        assert [record.clients for record in strategy.records] == [CLIENTS] * 2
    assert torch.is_grad_enabled()
    assert [array.data for array in ends[0].values()] == [array.data for array in ends[1].values()]


def test_layers_that_a_function_freezes_stay_where_they_are():
    for make, defense in (
        (lambda: FedAvg(net(), 0.1), None),
        (lambda: ADGP(net(), 0.1, k=SHARE), error_feedback(prune_aligned(SHARE, 0.1))),
    ):
        strategy = make()
        got = federate(strategy, app(net, freezing, defense=defense)).arrays.to_torch_state_dict()
        assert [record.clients for record in strategy.records] == [CLIENTS] * 2
        moved = {
            name for name, tensor in started().state_dict().items() if not torch.equal(tensor, got[name])
        }
        assert moved
        assert moved <= {"2.weight", "2.bias"}


def test_a_function_that_changes_the_type_of_its_model_fails_alone():
    strategy = FedAvg(net(), 0.1)
    federate(strategy, app(net, halving))
    failures = [failure for record in strategy.records for failure in record.failures]
    assert [failure.client for failure in failures] == [1, 1]
    assert all("0.weight" in failure.reason for failure in failures)


def test_a_function_that_trains_another_model_is_named():
    def forgetting(model, context, config):
        other = started()
        other.load_state_dict(model.state_dict())
        return train(other, context, config)

    with pytest.raises(NoUpdateUsed, match="neither moved the model"):
        federate(FedAvg(net(), 0.1), app(net, forgetting))


def test_a_vote_on_coordinates_is_no_training():
    def decaying(model, context, config):
        samples, metrics = train(model, context, config)
        torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1).step()
        return samples, metrics

    vote = {"share": SHARE, "chosen_by": "vote"}
    strategy, defended = FLTop(net(), 0.1, **vote), fl_top(**vote)
    with pytest.raises(NoUpdateUsed, match="weight decay"):
        federate(strategy, app(net, decaying, defense=defended))
    federate(FLTop(net(), 0.1, **vote), app(net, decaying, defense=defended), rounds=1)


def test_a_rate_of_zero_is_no_failure():
    strategy = FedAvg(net(), lambda server_round: 0.0 if server_round == 1 else 0.1)
    federate(strategy, app(net, train))
    assert [record.clients for record in strategy.records] == [CLIENTS] * 2


def test_the_returned_number_of_samples_counts_not_a_metric_of_its_name():
    def telling(model, context, config):
        samples, _ = train(model, context, config)
        return samples, {"num-examples": 1}

    result = federate(FedAvg(net(), 0.1), app(net, telling), rounds=1)
    assert result.train_metrics_clientapp[1]["num-examples"] == sum(len(rows(c)[0]) for c in range(CLIENTS))


@pytest.mark.parametrize(
    "said", [20, (20.0, {}), (20, None), (20, {"a": [1]}), (1 << 60, {}), (-3, {}), None]
)
def test_wrong_return_values_are_told_with_what_came(said):
    def wrong(model, context, config):
        train(model, context, config)
        return said

    with pytest.raises(NoUpdateUsed, match="train must return"):
        federate(FedAvg(net(), 0.1), app(net, wrong), rounds=1)


class Oddly(nn.Module):
    """Names with slashes, tildes and beyond ASCII, a scalar, an empty tensor."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict({"größe/1": nn.Linear(6, 8), "a~1": nn.Linear(8, 3)})
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.zeros(0))
        self.arrays = nn.Parameter(torch.ones(3))

    def forward(self, x):
        x = x.to(self.scale.dtype)
        return (self.layers["a~1"](F.relu(self.layers["größe/1"](x))) * self.scale + self.arrays).float()


class Half(Oddly):
    def __init__(self):
        super().__init__()
        self.half()


class Transformer(nn.Module):
    """Whole numbers in; the output layer is tied to the embedding; BatchNorm at the end."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.norm = nn.BatchNorm1d(8)
        self.output = nn.Linear(8, 16, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, x):
        tokens = (x * 4).long().clamp(-7, 8) + 7
        return self.output(self.norm(self.layer(self.embedding(tokens)).mean(1)))[:, :3]


def public(model):
    x, y = rows(50)
    return F.cross_entropy(model(x), y)


STRATEGIES = {
    "fed_sgd": (lambda model: FedSGD(model, 0.1), {"defense": error_feedback(prune_dual(0.05, 0.5))}),
    "fed_avg": (lambda model: FedAvg(model, 0.1), {"defense": error_feedback(keep_topk(0.2))}),
    "adgp": (lambda m: ADGP(m, 0.1, k=SHARE), {"defense": error_feedback(prune_aligned(SHARE, 0.1))}),
    "adgp by vote": (
        lambda m: ADGP(m, 0.1, k=SHARE, location="vote", voters=2),
        {"defense": error_feedback(prune_aligned(SHARE, 0.1))},
    ),
    "fl_top": (lambda m: FLTop(m, 0.1, share=SHARE, public=public), {"defense": fl_top(SHARE)}),
    "fl_basic": (lambda m: FLBasic(m, 0.1, share=SHARE), {"defense": fl_basic(SHARE)}),
    "fl_cs": (lambda m: FLCS(m, 0.1, share=SHARE), {"defense": fl_cs(SHARE)}),
    "masks": (
        lambda m: FLStd(m, 0.1, aggregation=SecureAggregation(min_clients=2)),
        {"defense": fl_std(), "secagg": SecureSettings(2)},
    ),
}


@pytest.mark.parametrize("make", [Oddly, Half, Transformer])
@pytest.mark.parametrize("name", STRATEGIES)
def test_models_of_unusual_shapes_train_under_every_strategy(make, name):
    chosen, settings = STRATEGIES[name]
    if make is Transformer and name == "masks":
        with pytest.raises(ValueError, match="GroupNorm"):
            app(make, train, **settings)
        return
    strategy = chosen(make())
    got = federate(strategy, app(make, train, **settings), make, rounds=3).arrays
    assert not [failure for record in strategy.records for failure in record.failures]
    assert [record.clients for record in strategy.records] == [CLIENTS] * 3
    model = make()
    model.load_state_dict(got.to_torch_state_dict())
    assert all(bool(tensor.isfinite().all()) for tensor in model.state_dict().values())


@pytest.mark.filterwarnings("ignore:Complex modules")
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.complex64])
def test_types_that_no_array_of_flower_holds_are_refused_when_they_are_given(kind):
    model = nn.Linear(6, 3).to(kind)
    with pytest.raises(TypeError, match=r"^FedAvg: weight is of type"):
        FedAvg(model, 0.1)
    with pytest.raises(TypeError, match=r"^app: weight is of type"):
        app(model, train)


def test_public_samples_of_another_task_are_refused_with_the_way_out():
    x = torch.randn(8, 6)
    strategy = FLTop(nn.Linear(6, 1), 0.1, share=SHARE, public=(x, x[:, :1]))
    with pytest.raises(ValueError, match=r"^FLTop: public=.*loss\(model\)"):
        federate(strategy, app(nn.Linear(6, 1), train, defense=fl_top(SHARE)), lambda: nn.Linear(6, 1))
