"""Fails loudly, by name, when Flower moves something that this project cannot do without."""

import importlib

import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fl_app.flower import internals as flwr_internals

NEEDED = {
    "flwr.supercore.task_identity.TaskIdentity": "Message(...) needs it outside a Flower runtime",
    "flwr.supercore.run.Run": "Grid.run must be one",
    "flwr.common.serde.recorddict_to_proto": "bytes are counted as Flower serialises them",
}


@pytest.mark.parametrize("name", NEEDED)
def test_the_name_is_where_it_was(name):
    module, _, attribute = name.rpartition(".")
    try:
        found = hasattr(importlib.import_module(module), attribute)
    except ImportError:
        found = False
    assert found, (
        f"Flower moved {name} ({NEEDED[name]}): find its new place and mend fl_app/flower/internals.py"
    )


def test_messages_can_be_made_once_the_process_is_identified():
    flwr_internals.identify_process(7)
    message = Message(RecordDict(), 5, "train")
    assert (message.metadata.run_id, message.metadata.src_node_id) == (7, flwr_internals.SUPERLINK_NODE_ID)


def test_a_message_id_can_be_assigned_and_a_reply_refers_to_it():
    flwr_internals.identify_process(7)
    message = Message(RecordDict(), 5, "train")
    message_id = flwr_internals.assign_message_id(message)
    assert message.metadata.message_id == message_id
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == message_id


def test_the_error_code_and_node_id_are_still_flowers():
    from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode

    assert flwr_internals.CLIENT_APP_RAISED == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert flwr_internals.SUPERLINK_NODE_ID == SUPERLINK_NODE_ID


def test_the_size_of_a_content_is_the_sum_of_its_records_and_that_of_the_real_bytes():
    from flwr.common.serde import recorddict_to_proto

    content = RecordDict(
        {"a": ConfigRecord({"blob": b"x" * 70_000, "n": 3}), "m": MetricRecord({"loss": 0.5})}
    )
    whole = flwr_internals.serialised_size(content)
    assert whole == len(recorddict_to_proto(content).SerializeToString())
    assert whole == sum(flwr_internals.serialised_size(RecordDict({k: v})) for k, v in content.items())


def test_the_sender_of_a_reply_can_be_named():
    flwr_internals.identify_process(7)
    message = Message(RecordDict(), 5, "train")
    flwr_internals.assign_message_id(message)
    reply = Message(RecordDict(), reply_to=message)
    flwr_internals.name_sender(reply, 99)
    assert reply.metadata.src_node_id == 99
