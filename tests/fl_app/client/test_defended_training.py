"""Defenses that change training, in whole federations on the inline engine."""

import logging

import pytest
import torch
from federations import SMALL, SabotagedApp, train

from fl_app.config.build import client_parts, server_parts
from fl_app.flower import InlineGrid
from fl_app.training import evaluate, parameters
from fl_app.types import Update
from fl_app.wire import decode
from fl_app.wire.messages import unpack_order, unpack_reply

PRECODE = "defense=precode defense.size=16"
STRATEGIES = ["strategy=fed_sgd", "strategy=fed_avg"]


@pytest.fixture(autouse=True)
def _quiet(caplog):
    logging.getLogger("flwr").setLevel(logging.ERROR)


def first_updates(overrides: str) -> list[Update]:
    """What each client sent in the only round."""
    parts, tap = train(f"rounds=1 {overrides}")
    assert [record.failures for record in parts.strategy.records] == [[]]
    like = {name: p.detach() for name, p in parameters(parts.model).items()}
    return [decode(unpack_reply(reply).update, like) for _, reply in tap.exchanges]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_soteria_client_withholds_columns_and_nothing_else(strategy):
    # the sigmoid has no dead features: every column that is 0 was withheld; one local step, or masks add up
    shared = f"{strategy} model=mlp model.activation=sigmoid model.hidden=[90] clients=2 batch_size=100"
    defended = first_updates(f"{shared} defense=soteria defense.rate=0.7")
    raw = first_updates(f"{shared} defense=none")
    for ours, plain in zip(defended, raw, strict=True):
        withheld = (ours["output.weight"] == 0).all(dim=0)
        assert int(withheld.sum()) == 63
        assert not (plain["output.weight"] == 0).all(dim=0).any()
        assert torch.equal(ours["output.weight"][:, ~withheld], plain["output.weight"][:, ~withheld])
        assert all(torch.equal(ours[name], plain[name]) for name in plain if name != "output.weight")


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_precode_clients_send_the_bottleneck_and_draw_each_for_themselves(strategy, mode):
    text = f"{PRECODE} {strategy} client.mode={mode}"
    updates = first_updates(text)
    for update in updates:
        assert list(update)[-6:] == [
            "output.bottleneck.encoder.weight",
            "output.bottleneck.encoder.bias",
            "output.bottleneck.decoder.weight",
            "output.bottleneck.decoder.bias",
            "output.linear.weight",
            "output.linear.bias",
        ]
        assert all(tensor.any() for tensor in update.values())
    again, other = first_updates(text), first_updates(f"{text} seed=1")
    assert all(torch.equal(updates[0][name], again[0][name]) for name in again[0])
    assert not torch.equal(updates[0]["output.linear.bias"], other[0]["output.linear.bias"])


def test_the_order_names_the_extended_model_and_a_pinned_client_takes_it():
    parts, tap = train(f"{PRECODE} client.pin_model=true")
    assert not any(record.failures for record in parts.strategy.records)
    order = unpack_order(tap.exchanges[0][0]).order
    plain = server_parts(f"{SMALL} defense=none").spec
    assert order.model_hash == parts.spec.hash != plain.hash
    assert client_parts(f"{SMALL} {PRECODE} client.pin_model=true").model == parts.spec


@pytest.mark.parametrize(
    ("pinned", "words"), [("true", "refuses model"), ("false", "must have one bottleneck")]
)
def test_a_precode_client_gives_no_plain_gradient_to_a_server_that_orders_the_plain_model(pinned, words):
    text = f"{SMALL} {PRECODE} client.pin_model={pinned}"
    grid = InlineGrid(SabotagedApp({}), 5, run_config={"overrides": text})
    parts, tap = train("defense=none rounds=1", grid=grid)
    (record,) = parts.strategy.records
    assert len(record.failures) == 5
    assert all(words in failure.reason for failure in record.failures)
    assert all(reply.has_error() or not unpack_reply(reply).update for _, reply in tap.exchanges)


@pytest.mark.parametrize("defense", [PRECODE, "defense=soteria defense.rate=0.4"])
def test_a_defended_federation_learns(defense):
    parts, _ = train(f"{defense} model=mlp model.hidden=[32] rounds=15 clients=2 batch_size=40")
    model, dataset = parts.model.eval(), parts.dataset

    def loss(weights: Update) -> float:
        model.load_state_dict(weights)
        return evaluate(model, dataset.train, dataset.mean, dataset.std).loss

    before = loss({name: tensor.clone() for name, tensor in model.state_dict().items()})
    assert loss(dict(parts.strategy.weights)) < 0.8 * before
