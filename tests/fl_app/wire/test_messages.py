import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fl_app.flower.internals import identify_process, serialised_size
from fl_app.privacy import Release
from fl_app.types import Truth
from fl_app.wire.messages import (
    Answer,
    AuditOrder,
    Identity,
    LocationQuery,
    MessageError,
    Order,
    Parcel,
    Reply,
    add_audit_order,
    add_query,
    content_bytes,
    pack_audit,
    pack_blob,
    pack_identity,
    pack_order,
    pack_reply,
    read_query,
    take_audit,
    unpack_identity,
    unpack_order,
    unpack_reply,
)

ORDER = Order(round=3, client=4, lr=0.1, model_hash="ab", version=2, base=1, counted=2)


@pytest.fixture(autouse=True)
def _process() -> None:
    identify_process(1)


def message(content: RecordDict) -> Message:
    return Message(content, 1000, "train")


def test_an_order_comes_back_as_it_was():
    sent = message(pack_order(ORDER, pack_blob(b"weights"), pack_blob(b"stats")))
    assert unpack_order(sent) == Parcel(ORDER, b"weights", b"stats")
    add_audit_order(sent, AuditOrder(batch_size=1, truth=True, raw=True))
    assert unpack_order(sent).audit == AuditOrder(1, True, True)


def test_locations_and_a_query_come_back_as_they_were():
    sent = message(pack_order(ORDER, pack_blob(b"weights"), locations=pack_blob(b"places")))
    assert unpack_order(sent) == Parcel(ORDER, b"weights", locations=b"places")
    add_query(sent.content, LocationQuery(share=0.4, min_size=4))
    assert read_query(sent) == LocationQuery(0.4, 4)


def test_what_was_released_comes_back_as_it_was():
    reply = Reply(Answer(3, 4, samples=32), b"update", release=Release(0.01, 1.1, 5, 1e-5))
    assert unpack_reply(message(pack_reply(reply))) == reply


def test_a_reply_comes_back_as_it_was():
    reply = Reply(Answer(3, 4, samples=32, steps=5), b"update", b"stats", {"loss": 0.5})
    assert unpack_reply(message(pack_reply(reply))) == reply


def test_an_identity_comes_back_as_it_was():
    identity = Identity(client=3, num_clients=10, allow_audit=False)
    assert unpack_identity(message(pack_identity(identity))) == identity


def test_a_reply_that_asks_for_the_model_needs_no_update():
    reply = unpack_reply(message(pack_reply(Reply(Answer(3, 4, need_model=True)))))
    assert reply.answer.need_model
    assert reply.update == b""


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (RecordDict(), "expected a config record 'answer'"),
        (RecordDict({"answer": ConfigRecord({"round": 1})}), "must have"),
        (
            RecordDict(
                {"answer": ConfigRecord(vars(Answer(1, 2)) | {"samples": "many"})},
            ),
            "answer.samples must be int, got str 'many'",
        ),
        (RecordDict({"answer": ConfigRecord(vars(Answer(1, 2, 3)))}), "expected bytes in record 'update'"),
    ],
)
def test_a_foreign_reply_is_a_message_error_that_says_what_is_missing(content, complaint):
    with pytest.raises(MessageError, match=complaint):
        unpack_reply(message(content))


def test_the_audit_travels_beside_the_reply_and_can_be_taken_out():
    truth = Truth(inputs=torch.rand(2, 3, 4, 4), labels=torch.tensor([1, 7]))
    raw = {"w": torch.randn(3, 2)}
    content = pack_reply(Reply(Answer(1, 2, 3), b"u"), pack_audit(truth, raw))
    size = content_bytes(content)
    found, update = take_audit(content)
    torch.testing.assert_close((found.inputs, found.labels), (truth.inputs, truth.labels), rtol=0, atol=0)
    torch.testing.assert_close(update, raw, rtol=0, atol=0)
    assert take_audit(content) == (None, None)
    assert content_bytes(content) == size, "audit records are not counted"


def test_shared_records_are_measured_once_and_counted_every_time():
    model, known = pack_blob(b"x" * 5000), {}
    contents = [pack_order(ORDER, model) for _ in range(3)]
    assert [content_bytes(c, known) for c in contents] == [serialised_size(c) for c in contents]
    assert list(known) == [id(model)]
