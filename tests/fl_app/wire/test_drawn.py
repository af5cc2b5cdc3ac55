"""Drawn positions: nothing of them travels, and whatever does not fit is written as ever."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.wire import CodecError, Drawn, decode, encode


def on(drawn, shapes, value=lambda shape: torch.randn(shape)):
    update = {}
    for name, shape in shapes.items():
        flat = torch.zeros(shape).reshape(-1)
        n = flat.numel()
        where = torch.tensor(drawn.positions(name, n)) if 0 < drawn.counts[name] < n else slice(None)
        flat[where] = value(flat[where].shape)
        update[name] = flat.view(shape)
    return update


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 2**63 - 1),
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1)), min_size=1, max_size=4),
)
def test_round_trip(seed, sizes):
    shapes = {f"t{i}": (n,) for i, (n, _) in enumerate(sizes)}
    drawn = Drawn(seed, {f"t{i}": max(1, int(n * share)) for i, (n, share) in enumerate(sizes)})
    update = on(drawn, shapes)
    blob = encode(update, drawn=drawn)
    back = decode(blob, update)
    assert all(torch.equal(back[name], update[name]) for name in update)


def test_an_update_that_is_not_where_it_was_drawn_is_coded_as_ever():
    drawn = Drawn(5, {"w": 30})
    update = on(drawn, {"w": (100,)})
    update["w"][torch.nonzero(update["w"] == 0)[0]] = 1.0
    assert encode(update, drawn=drawn) == encode(update)


def test_the_sets_of_two_tensors_differ():
    drawn = Drawn(5, {"a": 30, "b": 30})
    assert drawn.positions("a", 100).tolist() != drawn.positions("b", 100).tolist()


def test_other_positions_are_not_read():
    drawn = Drawn(5, {"w": 30})
    blob = bytearray(encode(on(drawn, {"w": (100,)}), drawn=drawn))
    for at in range(len(blob)):
        damaged = bytes(blob[:at]) + bytes([blob[at] ^ 1]) + bytes(blob[at + 1 :])
        with pytest.raises(CodecError):
            decode(damaged, {"w": torch.zeros(100)})
