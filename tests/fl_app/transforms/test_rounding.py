"""Rounding: error bounds, and the same result as other implementations of the formats."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.seeding import generator_for
from fl_app.transforms import round_bf16, round_fp16, round_int8
from fl_app.types import RoundContext

CTX = RoundContext(1, 0, generator_for(0, 1, 0, "test"))
floats = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30)


def rounded(transform, tensor: torch.Tensor) -> torch.Tensor:
    sent, _ = transform.apply({"w": tensor}, {}, CTX)
    return sent["w"]


def magnitudes_from(low: float, high: float) -> torch.Tensor:
    """Random signs, exponents evenly spread."""
    exponents = torch.empty(50_000).uniform_(low, high)
    return torch.exp2(exponents) * (torch.randint(0, 2, (50_000,)) * 2 - 1)


@pytest.mark.parametrize(
    ("transform", "low", "high", "bound"),
    [(round_fp16(), -14, 15.9, 2.0**-11), (round_bf16(), -126, 127, 2.0**-8)],
    ids=["fp16", "bf16"],
)
def test_the_relative_error_is_at_most_half_of_the_last_bit(transform, low, high, bound):
    g = magnitudes_from(low, high)
    error = ((rounded(transform, g).double() - g.double()) / g.double()).abs()
    assert bound / 2 < error.max() <= bound


def test_small_halves_are_off_by_at_most_half_of_their_spacing():
    g = magnitudes_from(-30, -14)
    assert (rounded(round_fp16(), g).double() - g.double()).abs().max() <= 2.0**-25


@settings(deadline=None)
@given(floats)
def test_fp16_against_numpy(values):
    array = np.array(values, np.float32)
    expected = np.clip(array, -65504, 65504).astype(np.float16).astype(np.float32)
    assert np.array_equal(rounded(round_fp16(), torch.tensor(values)).numpy(), expected)


@settings(deadline=None)
@given(floats)
def test_bf16_against_bit_arithmetic(values):
    def nearest(value: float) -> float:
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        low, kept = bits & 0xFFFF, bits >> 16
        up = low > 0x8000 or (low == 0x8000 and kept & 1)
        kept += up and (kept & 0x7FFF) < 0x7F7F  # not up to infinity
        return struct.unpack("<f", struct.pack("<I", kept << 16))[0]

    assert rounded(round_bf16(), torch.tensor(values)).tolist() == [nearest(value) for value in values]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_too_large_becomes_the_largest_finite_number(dtype):
    g = torch.tensor([65519.0, 65520.0, -1e30, 3.4e38, -3.4028e38], dtype=dtype)
    assert rounded(round_fp16(), g).tolist() == [65504.0, 65504.0, -65504.0, 65504.0, -65504.0]
    largest = torch.finfo(torch.bfloat16).max
    assert rounded(round_bf16(), g)[3:].tolist() == [largest, -largest]


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30))
def test_int8_against_a_loop(values):
    array = [np.float32(value) for value in values]
    scale = max(max(abs(value) for value in array) / np.float32(127), np.finfo(np.float32).tiny)
    # Python's round takes halves to the even neighbour
    expected = [float(np.float32(round(float(value / scale))) * scale) for value in array]
    assert rounded(round_int8(), torch.tensor(values)).tolist() == expected


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_int8_is_off_by_at_most_half_of_a_step_and_uses_whole_steps(size):
    g = torch.randn(10_000, dtype=torch.float64) * size
    sent = rounded(round_int8(), g)
    step = g.abs().max() / 127
    assert (sent - g).abs().max() <= step / 2 * (1 + 1e-12)
    factors = (sent / step).round()
    assert torch.equal(factors * step, sent)
    assert factors.abs().max() == 127
    assert 100 < factors.unique().numel() <= 255


def test_int8_takes_halves_to_the_even_step():
    g = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.4])
    assert rounded(round_int8(), g).tolist() == [127.0, 0.0, 2.0, 2.0, 0.0, -2.0, 3.0]


def test_int8_gives_every_tensor_a_scale_of_its_own():
    update = {"small": torch.tensor([1e-5, 5e-6]), "large": torch.tensor([100.0, 50.0])}
    sent, _ = round_int8().apply(update, {}, CTX)
    for name in update:
        torch.testing.assert_close(sent[name], update[name], rtol=0.01, atol=0)


def test_int8_leaves_zeros_and_nothing_and_makes_no_minus_zero():
    assert rounded(round_int8(), torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]
    assert rounded(round_int8(), torch.empty(0)).shape == (0,)
    sent = rounded(round_int8(), torch.tensor([-1e-6, -0.0, 1.0]))
    assert not torch.signbit(sent).any()


def test_int8_of_denormals_is_finite_and_within_half_of_a_step():
    g = torch.tensor([1.9e-43, -1e-44, 0.0])
    assert (rounded(round_int8(), g) - g).abs().max() <= torch.finfo(torch.float32).tiny / 2


@pytest.mark.parametrize(
    "transform", [round_fp16(), round_bf16(), round_int8()], ids=["fp16", "bf16", "int8"]
)
def test_rounding_twice_is_rounding_once(transform):
    once = rounded(transform, torch.randn(5000))
    torch.testing.assert_close(rounded(transform, once), once, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "transform", [round_fp16(), round_bf16(), round_int8()], ids=["fp16", "bf16", "int8"]
)
def test_infinity_is_refused_and_not_made_ordinary(transform):
    with pytest.raises(ValueError, match=r"shape \(2,\) holds NaN or infinity"):
        rounded(transform, torch.tensor([1.0, float("inf")]))
