import logging

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from fl_app.flower import InlineGrid


@pytest.fixture
def app() -> ClientApp:
    """Counts its own calls in its state; raises when told to."""
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        record = context.state.config_records.setdefault("memory", ConfigRecord({"calls": 0}))
        record["calls"] = int(record["calls"]) + 1
        if "fail" in message.content:
            raise RuntimeError("told to fail")
        if "change" in message.content:
            context.run_config["key"] = "changed"
        partition = context.node_config["partition-id"]
        content = RecordDict({"out": ConfigRecord({"partition": partition, "calls": record["calls"]})})
        return Message(content, reply_to=message)

    @client.query("config")
    def query(message: Message, context: Context) -> Message:
        content = RecordDict({"node": ConfigRecord(dict(context.node_config))})
        return Message(content, reply_to=message)

    return client


def order(node: int, kind: str = "train", **records: ConfigRecord) -> Message:
    return Message(RecordDict(records), node, kind)


def calls(reply: Message) -> int:
    return reply.content.config_records["out"]["calls"]


def test_every_node_has_a_context_of_its_own_that_lasts(app):
    grid = InlineGrid(app, 3)
    nodes = list(grid.get_node_ids())
    first = list(grid.send_and_receive([order(node) for node in nodes]))
    assert [r.content.config_records["out"]["partition"] for r in first] == [0, 1, 2]
    again = list(grid.send_and_receive([order(nodes[1])]))
    assert [calls(r) for r in first + again] == [1, 1, 1, 2]


def test_an_exception_becomes_an_error_reply_and_the_state_is_as_before(app):
    grid = InlineGrid(app, 2)
    good, bad = grid.get_node_ids()
    replies = list(grid.send_and_receive([order(bad, fail=ConfigRecord()), order(good)]))
    assert replies[0].has_error()
    assert replies[0].error.code == 2
    assert "RuntimeError" in replies[0].error.reason
    assert "told to fail" in replies[0].error.reason
    assert not replies[1].has_error()
    assert calls(next(iter(grid.send_and_receive([order(bad)])))) == 1


def test_a_changed_run_config_is_an_error(app):
    grid = InlineGrid(app, 1, run_config={"key": "value"})
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([order(node, change=ConfigRecord())])
    assert "run config" in reply.error.reason


def test_node_config_says_partition_and_allows_audits_unless_told_otherwise(app):
    for given, expected in (({}, True), ({"allow-audit": False}, False)):
        grid = InlineGrid(app, 2, node_config=given)
        (reply,) = grid.send_and_receive([order(list(grid.get_node_ids())[1], "query.config")])
        assert dict(reply.content.config_records["node"].items()) == {
            "partition-id": 1,
            "num-partitions": 2,
            "allow-audit": expected,
            "trust-config": True,
        }


def test_replies_refer_to_their_messages_and_are_pulled_once(app):
    grid = InlineGrid(app, 1)
    (node,) = grid.get_node_ids()
    ids = list(grid.push_messages([order(node), order(node)]))
    replies = list(grid.pull_messages(ids))
    assert [r.metadata.reply_to_message_id for r in replies] == ids
    assert [r.metadata.src_node_id for r in replies] == [node, node]
    assert list(grid.pull_messages(ids)) == []


def test_nothing_comes_after_the_timeout(app):
    grid = InlineGrid(app, 3)
    assert list(grid.send_and_receive([order(n) for n in grid.get_node_ids()], timeout=-1)) == []


def test_a_client_cannot_empty_what_the_server_holds():
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        arrays.to_numpy_ndarrays(keep_input=False)
        message.content.config_records["config"].clear()
        return Message(RecordDict(), reply_to=message)

    grid = InlineGrid(client, 1)
    content = RecordDict({"arrays": ArrayRecord([np.ones(3)]), "config": ConfigRecord({"lr": 0.1})})
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([Message(content, node, "train")])
    assert not reply.has_error()
    assert len(content.array_records["arrays"]) == 1
    assert content.config_records["config"]["lr"] == 0.1


def test_flowers_own_strategy_runs_on_it_unchanged(caplog):
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        (values,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        step = 1.0 + context.node_config["partition-id"]
        content = RecordDict(
            {"arrays": ArrayRecord([values + step]), "metrics": MetricRecord({"num-examples": 1})}
        )
        return Message(content, reply_to=message)

    with caplog.at_level(logging.CRITICAL, logger="flwr"):
        result = FedAvg(fraction_evaluate=0.0, min_train_nodes=4, min_available_nodes=4).start(
            grid=InlineGrid(client, 4), initial_arrays=ArrayRecord([np.zeros(5)]), num_rounds=3
        )
    (values,) = result.arrays.to_numpy_ndarrays()
    np.testing.assert_allclose(values, 3 * 2.5)


def test_unknown_nodes_and_empty_grids_are_refused(app):
    with pytest.raises(ValueError, match="num_supernodes must be at least 1, got 0"):
        InlineGrid(app, 0)
    with pytest.raises(ValueError, match="node ids go from"):
        InlineGrid(app, 2).context(5)
