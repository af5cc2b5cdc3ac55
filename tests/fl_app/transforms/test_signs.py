"""Signs: one magnitude per tensor, and the direction of every entry."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.seeding import generator_for
from fl_app.transforms import take_sign
from fl_app.types import RoundContext

CTX = RoundContext(1, 0, generator_for(0, 1, 0, "test"))


@settings(deadline=None)
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=30), st.booleans())
def test_against_a_loop(values, scale):
    sent, _ = take_sign(scale).apply({"w": torch.tensor(values, dtype=torch.float64)}, {}, CTX)
    size = sum(abs(value) for value in values) / len(values) if scale else 1.0
    expected = [size if value > 0 else -size if value < 0 else 0.0 for value in values]
    torch.testing.assert_close(sent["w"], torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=0)


def test_every_tensor_has_zero_and_one_magnitude_and_keeps_its_l1_norm():
    update = {"w": torch.randn(30, 20), "b": 100 * torch.randn(10), "mixed": torch.randn(50)}
    update["mixed"][::5] = 0
    sent, _ = take_sign().apply(update, {}, CTX)
    for name, tensor in sent.items():
        assert tensor[tensor != 0].abs().unique().numel() == 1
        assert torch.equal(tensor == 0, update[name] == 0)
        assert torch.equal(tensor > 0, update[name] > 0)
    for name in ("w", "b"):  # without zeros, the mean magnitude is kept
        torch.testing.assert_close(sent[name].abs().mean(), update[name].abs().mean())


def test_a_zero_has_no_sign():
    sent, _ = take_sign(scale=False).apply({"w": torch.tensor([0.0, -0.0, 2.0, -1e-45])}, {}, CTX)
    assert sent["w"].tolist() == [0.0, 0.0, 1.0, -1.0]


def test_the_size_of_an_update_is_gone_from_a_plain_sign():
    g = torch.randn(100)
    sent, _ = take_sign(scale=False).apply({"w": g}, {}, CTX)
    louder, _ = take_sign(scale=False).apply({"w": 1000 * g}, {}, CTX)
    assert torch.equal(sent["w"], louder["w"])


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_has_no_mean_or_no_sign_is_refused(scale, value):
    with pytest.raises(ValueError, match="take_sign: a tensor of shape"):
        take_sign(scale).apply({"w": torch.tensor([1.0, value])}, {}, CTX)
