import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.secagg import FixedPoint, fit_fixed_point
from fl_app.secagg.fixed_point import WIDTHS

GRIDS = st.builds(
    lambda levels, exponent, clients: (
        fit_fixed_point(bound=levels * 2.0**exponent, step=2.0**exponent, clients=clients),
        clients,
    ),
    st.integers(1, 1 << 40),
    st.integers(-40, 10),
    st.integers(1, 10_000),
)


@given(GRIDS, st.lists(st.floats(allow_nan=False, allow_infinity=True), max_size=20))
def test_a_value_comes_back_as_the_nearest_multiple_within_the_range(grid_and_clients, values):
    grid, _ = grid_and_clients
    back = grid.decode(grid.encode(values))
    for value, got in zip(values, back.tolist(), strict=True):
        clamped = min(max(value, -grid.bound), grid.bound)
        assert abs(got - clamped) <= grid.step / 2
        assert (got / grid.step).is_integer()


@given(GRIDS, st.sampled_from([-1, 1]))
def test_the_extreme_sum_of_the_whole_cohort_does_not_wrap(grid_and_clients, sign):
    grid, clients = grid_and_clients
    extreme = grid.encode([sign * grid.bound])
    total = extreme * np.asarray(clients, grid.word)
    assert grid.signed(total).tolist() == [sign * clients * grid.levels]


@given(GRIDS)
def test_no_shorter_format_would_do(grid_and_clients):
    grid, clients = grid_and_clients
    if grid.bits > WIDTHS[0]:
        with pytest.raises(ValueError, match=f"{clients} clients"):
            FixedPoint(grid.bound, grid.step, grid.bits - 8).check_room(clients)


def test_one_client_too_many_is_an_error_and_not_a_wrap():
    grid = FixedPoint(bound=1.0, step=1.0, bits=8)
    grid.check_room(127)
    with pytest.raises(ValueError, match=r"128 clients .* up to 128, 8 bits hold 127"):
        grid.check_room(128)
    with pytest.raises(ValueError, match="64 bits hold"):
        fit_fixed_point(bound=2.0**52, step=1.0, clients=2**12)


@pytest.mark.filterwarnings("error")  # a warning, too, would tell something about the data
def test_no_value_is_refused():
    grid = FixedPoint(bound=1.0, step=0.5, bits=8)
    wild = [math.nan, math.inf, -math.inf, 1e300, -1e300, 0.24, -0.26]
    assert grid.decode(grid.encode(wild)).tolist() == [0.0, 1.0, -1.0, 1.0, -1.0, 0.0, -0.5]


def test_the_input_stays_as_it_is():
    values = np.array([1.0, math.nan, 5.0])
    FixedPoint(bound=1.0, step=1.0, bits=8).encode(values)
    assert np.array_equal(values, [1.0, math.nan, 5.0], equal_nan=True)


def test_takes_tensors_of_any_shape_and_float():
    grid = FixedPoint(bound=8.0, step=0.5, bits=16)
    tensor = torch.tensor([[1.0, -2.5], [0.5, 7.0]], dtype=torch.float16)
    assert grid.decode(grid.encode(tensor)).tolist() == [1.0, -2.5, 0.5, 7.0]


@pytest.mark.parametrize("bits", WIDTHS)
def test_packing_keeps_the_low_bits_and_only_them(bits):
    grid = FixedPoint(bound=1.0, step=1.0, bits=bits)
    words = np.random.default_rng(bits).integers(0, 2**64, 50, np.uint64).astype(grid.word)
    packed = grid.pack(words)
    assert len(packed) == 50 * bits // 8
    assert grid.unpack(packed).tolist() == [int(word) % 2**bits for word in words]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"bound": 0.0}, "bound must be positive"),
        ({"bound": math.inf}, "bound must be positive and finite"),
        ({"step": math.nan}, "step must be positive"),
        ({"step": 2.0}, "bound / step"),
        ({"step": 1e-20}, "bound / step"),
        ({"bits": 12}, "bits must be one of"),
    ],
)
def test_impossible_formats_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        FixedPoint(**{"bound": 1.0, "step": 0.5, "bits": 16} | settings)
