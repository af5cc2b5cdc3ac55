"""Objects that Flower's deployments cut a message into, against the bytes that are counted for it."""

import random

import pytest
from flwr.app import ArrayRecord, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fl_app.flower.internals import serialised_size
from fl_app.wire.messages import Answer, Order, Reply, content_bytes, pack_blob, pack_order, pack_reply

MOST_ON_TOP = 1000
"""Bytes of headers and hashes of a message of few chunks: docs/library.md says so."""
MOST_OF_A_CHUNK = 160


def travelling(content):
    return [len(each.deflate()) for each in get_all_nested_objects(content).values()]


def noise(size):
    """Chunks that are equal travel once: these are not."""
    return random.Random(0).randbytes(size)


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
def test_a_large_blob_travels_in_chunks(size):
    record = pack_blob(noise(size))
    chunks = [each.data for name, each in next(iter(record.values())).slice_array()]
    assert b"".join(bytes(chunk) for chunk in chunks) == noise(size)
    assert [len(chunk) for chunk in chunks] == [CHUNK] * (size // CHUNK) + [size % CHUNK] * (size % CHUNK > 0)
    assert max(travelling(RecordDict({"model": record}))) < CHUNK + MOST_OF_A_CHUNK


@pytest.mark.parametrize("size", [1, 1000, 62_000, CHUNK + 1])
def test_counted_bytes_are_the_contents_and_headers_come_on_top(size):
    reply = pack_reply(Reply(Answer(1, 0, 5, 1), noise(size), metrics={"train_loss": 1.0}))
    order = pack_order(Order(1, 0, 0.1, "0" * 64, 1), pack_blob(noise(size)))
    for content in (reply, order):
        counted = content_bytes(content)
        assert counted == serialised_size(content) > size
        assert 0 < sum(travelling(content)) - counted < MOST_ON_TOP


def test_every_blob_is_an_array_that_flower_can_cut():
    reply = pack_reply(Reply(Answer(1, 0, 5, 1), b"update", b"buffers"))
    blobs = [record for record in reply.values() if isinstance(record, ArrayRecord)]
    assert sorted(array.data for record in blobs for array in record.values()) == [b"buffers", b"update"]
