import math
from decimal import Decimal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.sketches.selection import between, ceil_count, floor_count, keep_only, largest, output_bias

# few distinct values: most examples have ties
values = st.lists(st.sampled_from([-2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 3.5]), min_size=1, max_size=40)


def ranking(entries: list[float]) -> list[int]:
    """Larger magnitude first, lower index first among equals: a sort, not a selection."""
    return sorted(range(len(entries)), key=lambda i: (-abs(entries[i]), i))


@given(values, st.data())
def test_largest_is_the_head_of_the_ranking(entries, data):
    count = data.draw(st.integers(0, len(entries)))
    mask = largest(torch.tensor(entries), count)
    assert mask.nonzero().flatten().tolist() == sorted(ranking(entries)[:count])


@given(values, st.data())
def test_between_is_the_middle_of_the_ranking(entries, data):
    top = data.draw(st.integers(0, len(entries)))
    bottom = data.draw(st.integers(0, len(entries) - top))
    mask = between(torch.tensor(entries), top=top, bottom=bottom)
    assert mask.nonzero().flatten().tolist() == sorted(ranking(entries)[top : len(entries) - bottom])


@pytest.mark.parametrize("size", [9_000, 70_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["normal", "ties", "sparse", "subnormal", "infinite", "one value"])
def test_many_entries_rank_as_a_stable_sort_ranks_them(kind, dtype, size):
    normal = torch.randn(size, generator=torch.Generator().manual_seed(size))
    entries = {
        "normal": normal,
        "ties": (4 * normal).round(),
        "sparse": normal.clamp(min=1.0) - 1.0,
        "subnormal": 1e-42 * normal,
        "infinite": torch.where(normal > 1.5, float("-inf"), normal),
        "one value": torch.full((size,), -0.25),
    }[kind].to(dtype)
    places = torch.empty(size, dtype=torch.long)
    places[torch.argsort(entries.abs(), descending=True, stable=True)] = torch.arange(size)
    for top, bottom in [(0, 0), (1, 1), (size // 20, 3 * size // 4), (size // 2, size // 2), (size, 0)]:
        mask = between(entries, top=top, bottom=bottom)
        assert torch.equal(mask, (places >= top) & (places < size - bottom))
        assert torch.equal(largest(entries, top), places < top)


@given(st.decimals(0, 1, places=3), st.integers(0, 10_000))
def test_counts_are_those_of_the_decimal_that_was_written(k, n):
    assert floor_count(float(k), n) == math.floor(Decimal(k) * n)
    assert ceil_count(float(k), n) == math.ceil(Decimal(k) * n)


def test_a_count_that_doubles_get_wrong():
    assert math.floor(0.7 * 90) == 62
    assert floor_count(0.7, 90) == 63


def test_masks_have_the_shape_of_the_tensor():
    assert largest(torch.randn(3, 4, 5), 7).shape == (3, 4, 5)
    assert largest(torch.tensor(2.0), 1).shape == ()


def test_nan_has_no_ranking():
    with pytest.raises(ValueError, match="NaN"):
        largest(torch.tensor([1.0, float("nan")]), 1)


@pytest.mark.parametrize("count", [-1, 4])
def test_a_count_beyond_the_tensor_is_refused(count):
    with pytest.raises(ValueError, match="count must be in"):
        largest(torch.ones(3), count)


def test_what_is_not_kept_is_plus_zero_even_if_it_was_negative_or_infinite():
    kept = keep_only(torch.tensor([-1.0, float("inf"), -3.0]), torch.tensor([False, False, True]))
    assert kept.tolist() == [0.0, 0.0, -3.0]
    assert not torch.signbit(kept[:2]).any()


def test_the_output_bias_is_a_trailing_vector_named_bias():
    weight, bias = torch.ones(2, 3), torch.ones(2)
    assert output_bias({"fc.weight": weight, "fc.bias": bias}) == "fc.bias"
    assert output_bias({"fc.bias": bias, "fc.weight": weight}) is None
    assert output_bias({}) is None
