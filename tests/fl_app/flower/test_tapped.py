import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.flower import InlineGrid
from fl_app.flower.copies import copy_message
from fl_app.flower.forwarding import ForwardingGrid
from fl_app.flower.internals import SUPERLINK_NODE_ID, assign_message_id, name_sender
from fl_app.flower.tapped import TappedGrid


@pytest.fixture
def grid() -> InlineGrid:
    client = ClientApp()

    @client.train()
    def echo(message: Message, context: Context) -> Message:
        return Message(RecordDict({"echo": message.content["order"]}), reply_to=message)

    return InlineGrid(client, 3)


class Passive:
    def __init__(self) -> None:
        self.pairs: list[tuple[int, int]] = []

    def on_send(self, message: Message) -> Message:
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message | None:
        self.pairs.append((sent.content["order"]["n"], reply.content["echo"]["n"]))
        return reply


def orders(grid: TappedGrid) -> list[Message]:
    return [
        Message(RecordDict({"order": ConfigRecord({"n": i})}), node, "train")
        for i, node in enumerate(grid.get_node_ids())
    ]


def numbers(replies) -> list[int]:
    return [reply.content["echo"]["n"] for reply in replies]


def test_a_passive_tap_sees_every_exchange_and_changes_nothing(grid):
    tap = Passive()
    tapped = TappedGrid(grid, tap)
    assert numbers(tapped.send_and_receive(orders(tapped))) == [0, 1, 2]
    assert tap.pairs == [(0, 0), (1, 1), (2, 2)]


def test_pushed_and_pulled_messages_pass_the_tap_too(grid):
    tap = Passive()
    tapped = TappedGrid(grid, tap)
    ids = list(tapped.push_messages(orders(tapped)))
    assert numbers(tapped.pull_messages(ids)) == [0, 1, 2]
    assert tap.pairs == [(0, 0), (1, 1), (2, 2)]


def test_an_active_tap_rewrites_what_is_sent_and_withholds_replies(grid):
    class Active(Passive):
        def on_send(self, message: Message) -> Message:
            message.content["order"]["n"] += 10
            return message

        def on_reply(self, sent: Message, reply: Message) -> Message | None:
            return None if reply.content["echo"]["n"] == 11 else reply

    tapped = TappedGrid(grid, Active())
    sent = orders(tapped)
    assert numbers(tapped.send_and_receive(sent)) == [10, 12]
    assert [m.content["order"]["n"] for m in sent] == [0, 1, 2], "the strategy's own messages are untouched"


def test_a_tap_is_shown_what_concerns_it_and_no_copy_is_made_of_the_rest(grid, monkeypatch):
    class Choosy(Passive):
        def concerns(self, message: Message) -> bool:
            return message.content["order"]["n"] == 1

    copied = []
    monkeypatch.setattr(
        "fl_app.flower.tapped.copy_message", lambda one: copied.append(one) or copy_message(one)
    )
    tap = Choosy()
    tapped = TappedGrid(grid, tap)
    assert numbers(tapped.send_and_receive(orders(tapped))) == [0, 1, 2]
    ids = list(tapped.push_messages(orders(tapped)))
    assert numbers(tapped.pull_messages(ids)) == [0, 1, 2]
    assert tap.pairs == [(1, 1), (1, 1)]
    assert len(copied) == 4


def test_a_tap_that_edits_a_reply_does_not_reach_into_the_client():
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        context.state.setdefault("kept", ConfigRecord({"n": 1}))
        return Message(RecordDict({"echo": context.state["kept"]}), reply_to=message)

    class Editor(Passive):
        def on_reply(self, sent: Message, reply: Message) -> Message | None:
            reply.content["echo"]["n"] += 1
            return reply

    tapped = TappedGrid(InlineGrid(client, 1), Editor())
    for _ in range(2):
        assert numbers(tapped.send_and_receive(orders(tapped))) == [2]


def test_an_error_that_the_superlink_sends_for_a_node_is_that_node_s(grid):
    class Gone(ForwardingGrid):
        def send_and_receive(self, messages, *, timeout=None):
            for message in messages:
                assign_message_id(message)
                reply = Message(Error(5, "Node unavailable"), reply_to=message)
                name_sender(reply, SUPERLINK_NODE_ID)
                yield reply

    class Indifferent(Passive):
        def on_reply(self, sent: Message, reply: Message) -> Message:
            return reply

    tapped = TappedGrid(Gone(grid), Indifferent())
    replies = tapped.send_and_receive(orders(tapped)[1:])
    assert [reply.metadata.src_node_id for reply in replies] == list(grid.get_node_ids())[1:]
