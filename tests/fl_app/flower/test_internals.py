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


def test_a_mod_can_see_the_mods_behind_it():
    from flwr.client.mod.utils import make_ffn

    def inner(message, context, call_next):
        return call_next(message, context)

    seen = []

    def outer(message, context, call_next):
        seen.extend(flwr_internals.next_mods(call_next))

    make_ffn(lambda message, context: message, [outer, inner, inner])(None, None)
    assert seen == [inner, inner]


def test_records_and_calls_survive_their_bytes_and_garbage_is_a_value_error():
    from flwr.app import Context

    flwr_internals.identify_process(7)
    content = RecordDict({"m": MetricRecord({"loss": 0.5})})
    assert flwr_internals.unpack_records(flwr_internals.pack_records(content)) == content
    with pytest.raises(ValueError):
        flwr_internals.unpack_records(b"\xff\xff garbage")
    context = Context(7, 5, {"partition-id": 1}, content, {"lr": 0.1})
    message, read = flwr_internals.unpack_call(
        *flwr_internals.pack_call(Message(content, 5, "train"), context)
    )
    assert (message.content, read.state, read.node_config) == (content, content, {"partition-id": 1})


@pytest.mark.parametrize("name", ["install_from_fab", "get_load_client_app_fn", "run_clientapp"])
def test_flowers_runner_of_client_apps_looks_up_what_we_replace(name):
    module = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    used = module.run_clientapp.__code__.co_names
    assert name in used or name == "run_clientapp"


def test_flowers_superexec_launches_client_apps_by_the_method_that_we_replace():
    executor = importlib.import_module("flwr.supercore.superexec.executor.subprocess_executor")
    spec = importlib.import_module("flwr.supercore.superexec.executor.types").ExecutionSpec
    assert {"launch", "get_eligible_capacity"} <= set(vars(executor.SubprocessExecutor))
    fields = {"task_type", "runtime_api_address", "token", "insecure", "root_certificates_path", "parent_pid"}
    assert fields <= set(spec.__dataclass_fields__)
