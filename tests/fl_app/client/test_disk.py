"""Clients that are restarted, asked twice, asked for the past, or whose disk fails."""

import logging
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
from federations import SMALL
from flwr.app import ConfigRecord, Message, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fl_app.client.disk import MOST_RUNS, DurableMemory
from fl_app.client.records import to_tree
from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.flower import InlineGrid
from fl_app.flower.copies import copy_message, copy_records
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.storage import tree_file as stored_tree
from fl_app.strategies import NoUpdateUsed
from fl_app.wire.messages import LOCATE, TRAIN, MessageError, RunName, unpack_order, unpack_reply

KEY = "0123456789abcdef"
TINY = f"{SMALL} clients=3 data.size=12 rounds=4"
MLP = "model=mlp model.hidden=[8]"
BN = "model=convnet model.width=4 bn=local"


class Node:
    """A federation on the inline engine whose clients keep their memory in ``folder``, if there is one."""

    def __init__(self, overrides: str, folder=None, key: str = KEY, **node) -> None:
        self.text = f"{TINY} {'' if 'model=' in overrides else MLP} {overrides}"
        self.parts = server_parts(self.text)
        self.strategy = self.parts.strategy
        self.strategy.run_key = key
        config = node | ({} if folder is None else {"state-dir": str(folder)})
        self.grid = InlineGrid(
            app, self.parts.config["clients"], run_config={"overrides": self.text}, node_config=config
        )
        self.sent: list[tuple[Message, Message]] = []
        self.before = lambda round, client: None
        """Is called before an order is delivered."""

    def train(self):
        logging.getLogger("flwr").setLevel(logging.ERROR)
        with suppress(NoUpdateUsed):  # callers look at the records
            self.strategy.start(
                grid=TappedGrid(self.grid, self),
                initial_arrays=hold(self.parts.model.state_dict()),
                num_rounds=self.parts.config["rounds"],
            )
        return self

    def restart(self, client: int) -> None:
        self.grid.context(list(self.grid.get_node_ids())[client]).state = RecordDict()

    def deliver(self, message: Message) -> Message:
        (reply,) = self.grid.send_and_receive([copy_message(message)])
        return reply

    def state(self, client: int) -> RecordDict:
        return self.grid.context(list(self.grid.get_node_ids())[client]).state

    def on_send(self, message: Message) -> Message:
        if message.metadata.message_type in (TRAIN, LOCATE):
            order = unpack_order(message).order
            self.before(order.round, order.client)
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message:
        if sent.metadata.message_type in (TRAIN, LOCATE):
            self.sent.append((sent, reply))
        return reply

    def order(self, round: int, client: int, kind: str = TRAIN) -> tuple[Message, Message]:
        """The last exchange of that round with that client."""
        found = [
            (sent, reply)
            for sent, reply in self.sent
            if sent.metadata.message_type == kind
            and (unpack_order(sent).order.round, unpack_order(sent).order.client) == (round, client)
        ]
        return found[-1]


def weights(node: Node) -> dict:
    return {name: tensor.clone() for name, tensor in node.strategy.weights.items()}


def same(one: dict, other: dict) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


STATEFUL = ["defense=dgp", "defense=adgp", "defense=topk fraction=0.7", f"defense=none {BN}"]


@pytest.mark.parametrize(
    "overrides", [*STATEFUL, "defense=none", "defense=fl_top defense.share=0.1 training.steps=2"]
)
def test_restarted_clients_go_on_as_if_they_had_not_been(overrides, tmp_path):
    whole = Node(overrides).train()
    broken = Node(overrides, tmp_path)
    broken.before = lambda round, client: broken.restart(client) if client != 1 else None
    broken.train()
    assert same(weights(whole), weights(broken))
    assert all(not record.failures for record in broken.strategy.records)


@pytest.mark.parametrize("overrides", ["defense=dgp", "defense=adgp"])
def test_without_a_folder_a_restarted_client_has_lost_its_residual(overrides):
    whole, broken = Node(overrides).train(), Node(overrides)
    broken.before = lambda round, client: broken.restart(client) if (round, client) == (3, 0) else None
    broken.train()
    assert not same(weights(whole), weights(broken))
    assert all(not record.failures for record in broken.strategy.records)


@pytest.mark.parametrize("folder", [True, False])
@pytest.mark.parametrize("overrides", [*STATEFUL, "defense=none", "defense=dp_sgd"])
def test_an_order_that_comes_twice_gets_the_same_answer_and_changes_nothing(overrides, folder, tmp_path):
    node = Node(overrides, tmp_path if folder else None).train()
    order, reply = node.order(4, 0)
    before = stored_tree._Encoder().pieces(to_tree(node.state(0)))
    again = node.deliver(order)
    assert unpack_reply(again) == unpack_reply(reply)
    after = stored_tree._Encoder().pieces(to_tree(node.state(0)))
    assert [bytes(piece) for piece in before] == [bytes(piece) for piece in after]


def test_noise_of_the_operating_system_is_drawn_once_for_an_order(tmp_path):
    private = "defense=fl_std dp=client dp.secure=true dp.epsilon=null dp.noise_multiplier=1 training.steps=2"
    node = Node(f"{private} dp.sampling=fixed", tmp_path).train()
    order, reply = node.order(4, 0)
    assert unpack_reply(node.deliver(order)) == unpack_reply(reply)
    restarted = replace_run(order, RunName(KEY, 1))
    assert unpack_reply(node.deliver(restarted)).update != unpack_reply(reply).update


def replace_run(order: Message, run: RunName) -> Message:
    changed = copy_message(order)
    changed.content["run"] = ConfigRecord(vars(run))
    return changed


def other_positions(order: Message) -> Message:
    """The same round asked for in another way."""
    changed = copy_message(order)
    header = dict(changed.content["order"].items()) | {"lr": 0.5}
    changed.content["order"] = ConfigRecord(header)
    return changed


def test_another_order_of_an_answered_round_is_refused_where_there_is_no_way_back():
    node = Node("defense=dgp").train()
    order, _ = node.order(4, 0)
    reply = node.deliver(other_positions(order))
    assert "expected an order after round 4" in reply.error.reason
    assert unpack_reply(node.deliver(order)) == unpack_reply(node.order(4, 0)[1])


@pytest.mark.parametrize("overrides", STATEFUL)
@pytest.mark.parametrize("live", [True, False])
def test_a_round_that_is_asked_for_again_starts_from_the_memory_of_before_it(overrides, live, tmp_path):
    node, other = (
        Node(overrides, tmp_path / "a").train(),
        Node(f"{overrides} rounds=3", tmp_path / "b").train(),
    )
    order = other_positions(node.order(4, 1)[0])
    if not live:
        node.restart(1)
    assert unpack_reply(node.deliver(order)) == unpack_reply(other.deliver(order))


def test_the_memory_of_another_run_is_never_seen(tmp_path):
    first = Node("defense=dgp", tmp_path).train()
    second = Node("defense=dgp", tmp_path, key="f" * 32).train()
    assert same(weights(first), weights(second))
    assert {path.name for path in (tmp_path / "client-0").iterdir()} == {KEY, "f" * 32}


@pytest.mark.parametrize("key", ["../../../x", "", "ABCDEF0123456789", "0" * 65])
def test_a_key_that_is_no_name_is_refused(key):
    with pytest.raises(ValueError, match="hexadecimal digits"):
        RunName(key)


def test_a_server_cannot_name_a_folder_of_its_own(tmp_path):
    node = Node("defense=dgp", tmp_path).train()
    order, _ = node.order(4, 0)
    order.content["run"] = ConfigRecord({"key": "../../../evil", "attempt": 0})
    with pytest.raises(MessageError, match="hexadecimal"):
        unpack_order(order)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_memory_is_set_aside_and_the_client_asks_for_the_model(data, tmp_path_factory, caplog):
    folder = tmp_path_factory.mktemp("state")
    node = Node("defense=dgp rounds=3", folder).train()
    file = folder / "client-0" / KEY / "round-3"
    whole = file.read_bytes()
    cut = data.draw(st.integers(0, len(whole) - 1))
    damaged = whole[:cut] + (
        bytes([whole[cut] ^ 0x10]) + whole[cut + 1 :] if data.draw(st.booleans()) else b""
    )
    file.write_bytes(damaged)
    node.restart(0)
    order, _ = node.order(3, 0)
    header = unpack_order(order).order
    later = replace_order(order, replace(header, round=4, base=2, version=3))
    caplog.clear()
    assert unpack_reply(node.deliver(later)).answer.need_model
    assert "set aside" in caplog.text
    assert (folder / "client-0" / "damaged").read_bytes() == damaged


def replace_order(message: Message, order) -> Message:
    changed = copy_message(message)
    changed.content["order"] = ConfigRecord(vars(order))
    return changed


def test_a_full_disk_keeps_the_answer_from_leaving_and_loses_nothing(tmp_path, monkeypatch):
    whole = Node("defense=dgp").train()
    node = Node("defense=dgp", tmp_path)
    honest, full = stored_tree.os.fsync, []

    def fsync(handle: int) -> None:
        if full:
            raise OSError(28, "No space left on device")
        honest(handle)

    monkeypatch.setattr(stored_tree.os, "fsync", fsync)
    node.before = lambda round, client: full.append(1) if (round, client) == (2, 0) else None
    lost = node.on_reply

    def on_reply(sent, reply):
        full.clear()
        return lost(sent, reply)

    node.on_reply = on_reply
    node.train()
    (failure, *_) = node.strategy.records[1].failures
    assert "No space left" in failure.reason
    assert "does not answer" in failure.reason
    assert [record.clients for record in node.strategy.records][2:] == [3, 3]
    assert not same(weights(whole), weights(node))
    # what it remembers is what it remembered before, not an answer that never left
    assert node.state(0).keys() == node.state(1).keys()


def test_old_runs_are_forgotten_first_and_the_room_is_bounded(tmp_path):
    for number in range(MOST_RUNS + 3):
        Node("defense=dgp rounds=1", tmp_path, key=f"{number:016x}").train()
    kept = sorted(path.name for path in (tmp_path / "client-0").iterdir())
    assert kept == [f"{number:016x}" for number in range(3, MOST_RUNS + 3)]
    size = sum(path.stat().st_size for path in (tmp_path / "client-0").rglob("*") if path.is_file())
    small = Node("defense=dgp rounds=1", tmp_path, key="a" * 16, **{"state-megabytes": 4 * size / 8 / 2**20})
    small.train()
    after = sum(path.stat().st_size for path in (tmp_path / "client-0").rglob("*") if path.is_file())
    assert after <= size / 2
    tiny = Node("defense=dgp rounds=1", tmp_path, key="b" * 16, **{"state-megabytes": 0.001}).train()
    assert all("are allowed" in failure.reason for failure in tiny.strategy.records[0].failures)
    assert len(tiny.strategy.records[0].failures) == 3
    assert not any((tmp_path / "client-0" / ("b" * 16)).iterdir())


def test_two_memories_of_a_run_are_kept(tmp_path):
    Node("defense=dgp", tmp_path).train()
    assert sorted(path.name for path in (tmp_path / "client-2" / KEY).iterdir()) == ["round-3", "round-4"]


def test_a_process_that_hung_for_rounds_neither_answers_nor_undoes_what_was_kept_since(tmp_path):
    whole = Node("defense=dgp").train()
    node, late, waking = Node("defense=dgp", tmp_path), DurableMemory(tmp_path, 0), []
    folder = tmp_path / "client-0" / KEY

    def before(round: int, client: int) -> None:
        if client != 0 or round < 3:
            return
        parcel = unpack_order(node.order(2, 0)[0])
        if round == 3:
            waking.append(late.recall(RecordDict(), parcel))
            return
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        with pytest.raises(OSError, match="another process has answered"):
            late.keep(node.state(0), parcel, waking.pop())
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
        node.restart(0)

    node.before = before
    node.train()
    assert len(node.strategy.records) == 4
    assert not waking
    assert same(weights(whole), weights(node))


@pytest.mark.parametrize("overrides", STATEFUL)
def test_a_client_that_died_after_its_answer_left_goes_on_from_its_disk(overrides, tmp_path):
    """Its node gives the next process the memory of before: Flower stores the new one after the answer."""
    whole, node, past = Node(overrides).train(), Node(overrides, tmp_path), []

    def before(round: int, client: int) -> None:
        if (round, client) == (2, 0) and not past:
            past.append(copy_records(node.state(0)))
        if (round, client) == (3, 0) and len(past) == 1:
            node.grid.context(next(iter(node.grid.get_node_ids()))).state = past[0]
            past.append(None)

    node.before = before
    node.train()
    assert same(weights(whole), weights(node))
    assert all(not record.failures for record in node.strategy.records)
