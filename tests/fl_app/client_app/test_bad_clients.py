"""One bad client never stops a round: it is named, and the others are averaged."""

import logging

import pytest
import torch
from federations import SMALL, train, with_update
from flwr.app import ConfigRecord, Context, Message, RecordDict

from fl_app.client_app import app as real_client_app
from fl_app.config.build import client_parts, server_parts
from fl_app.flower import InlineGrid
from fl_app.training import Job
from fl_app.wire import decode, encode
from fl_app.wire.messages import Reply, pack_reply, unpack_reply


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def raises(order: Message, reply: Message, context: Context) -> Message:
    raise RuntimeError("disk on fire")


def sends_nan(order: Message, reply: Message, context: Context) -> Message:
    return with_update(
        reply, encode(_update(lambda name, t: t + float("nan") if name.endswith("bias") else t))
    )


def sends_infinity(order: Message, reply: Message, context: Context) -> Message:
    return with_update(reply, encode(_update(lambda name, t: t / 0)))


def sends_wrong_shape(order: Message, reply: Message, context: Context) -> Message:
    return with_update(reply, encode(_update(lambda name, t: torch.ones(3, 3))))


def sends_foreign_blob(order: Message, reply: Message, context: Context) -> Message:
    return with_update(reply, b"not one of ours at all")


def sends_no_records(order: Message, reply: Message, context: Context) -> Message:
    reply.content = RecordDict({"hello": ConfigRecord({"world": 1})})
    return reply


def claims_to_be_another(order: Message, reply: Message, context: Context) -> Message:
    old = unpack_reply(reply)
    reply.content = pack_reply(Reply(type(old.answer)(old.answer.round, 0, 4), old.update))
    return reply


def claims_no_samples(order: Message, reply: Message, context: Context) -> Message:
    old = unpack_reply(reply)
    reply.content = pack_reply(Reply(type(old.answer)(old.answer.round, old.answer.client, 0), old.update))
    return reply


def _update(change):
    model = server_parts(SMALL).model
    return {name: change(name, torch.ones_like(p)) for name, p in model.named_parameters()}


BAD = {
    raises: "disk on fire",
    sends_nan: "NaN or infinity",
    sends_infinity: "NaN or infinity",
    sends_wrong_shape: "",
    sends_foreign_blob: "",
    sends_no_records: "expected a config record 'answer'",
    claims_to_be_another: "expected an answer of client 2 to round 1, got one of client 0",
    claims_no_samples: "samples must be at least 1, got 0",
}


@pytest.mark.parametrize("bad", BAD, ids=lambda f: f.__name__)
def test_a_bad_client_is_named_and_the_round_goes_on_with_the_others(bad, caplog):
    with caplog.at_level(logging.WARNING, logger="fl_app"):
        federated, tap = train("rounds=1 defense=none", {2: bad})
    (record,) = federated.strategy.records
    assert record.clients == 4
    (failure,) = record.failures
    assert failure.client == 2
    assert BAD[bad] in failure.reason
    assert "client 2" in caplog.text
    # the mean is that of the four others
    initial = dict(federated.model.named_parameters())
    good = [unpack_reply(r) for s, r in tap.exchanges if not r.has_error() and r.content.get("answer")]
    assert len(good) >= 4
    moved = max(float((federated.strategy.weights[n] - p.detach()).abs().max()) for n, p in initial.items())
    assert 0 < moved < 10


def test_the_mean_leaves_the_bad_client_out():
    federated, tap = train("rounds=1 defense=none dtype=float64", {2: sends_foreign_blob})
    initial = {name: p.detach() for name, p in federated.model.named_parameters()}
    good = [
        decode(unpack_reply(reply).update, initial) for i, (_, reply) in enumerate(tap.exchanges) if i != 2
    ]
    for name, before in initial.items():
        mean = torch.stack([update[name] for update in good]).mean(0)
        torch.testing.assert_close(federated.strategy.weights[name], before - 0.1 * mean, rtol=0, atol=1e-12)


def test_a_round_without_a_good_update_leaves_the_model_unchanged_and_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="fl_app"):
        federated, _ = train("rounds=2", dict.fromkeys(range(5), sends_foreign_blob))
    for record in federated.strategy.records:
        assert record.clients == 0
        assert len(record.failures) == 5
        assert "the model is unchanged" in record.notes[0]
    initial = {name: p.detach() for name, p in federated.model.named_parameters()}
    torch.testing.assert_close(federated.strategy.weights, initial, rtol=0, atol=0)
    assert "no usable update" in caplog.text


def test_an_update_that_was_refused_is_sent_again_with_the_next_one():
    """sent + residual = sum of updates, also for what the server never counted."""
    refused_once = {"done": False}

    def refuse_first(order: Message, reply: Message, context: Context) -> Message:
        if not refused_once["done"]:
            refused_once["done"] = True
            return with_update(reply, b"garbled on its way")
        return reply

    overrides = "rounds=2 clients=1 defense=topk defense.share=1.0 dtype=float64"
    federated, tap = train(overrides, {0: refuse_first})
    initial = {name: p.detach() for name, p in federated.model.named_parameters()}
    sent = decode(unpack_reply(tap.exchanges[1][1]).update, initial)
    # the model did not move in round 1: with the same weights, the second update is g1 + g2
    g1, g2 = (_raw_gradient(overrides, round) for round in (1, 2))
    for name in sent:
        torch.testing.assert_close(sent[name], g1[name] + g2[name], rtol=0, atol=1e-12)


def _raw_gradient(overrides: str, round: int):
    text = f"{SMALL} {overrides}"
    parts = client_parts(text)
    return parts.trainer(
        server_parts(text).model.train(), parts.data_of(0, 1), Job(round, 0.1, torch.Generator())
    ).update


def test_a_client_that_lost_its_state_asks_for_the_whole_model_and_loses_no_round():
    grid = InlineGrid(real_client_app, 5, run_config={"overrides": f"{SMALL} defense=none rounds=3"})

    original = grid.send_and_receive

    def wiping(messages, *, timeout=None):
        messages = list(messages)
        if messages and messages[0].metadata.message_type == "train":
            order = messages[0].content["order"]
            if order["round"] == 3 and len(messages) == 5:
                grid.context(list(grid.get_node_ids())[3]).state = RecordDict()
        return original(messages, timeout=timeout)

    grid.send_and_receive = wiping
    federated, tap = train("defense=none rounds=3", grid=grid)
    undisturbed, _ = train("defense=none rounds=3")
    assert [record.clients for record in federated.strategy.records] == [5, 5, 5]
    assert not any(record.failures for record in federated.strategy.records)
    assert len(tap.exchanges) == 16, "one more exchange: the whole model for client 3"
    torch.testing.assert_close(federated.strategy.weights, undisturbed.strategy.weights, rtol=0, atol=0)
