"""Discrete noise on a grid: the variance that is accounted for, and a length that rounding cannot exceed."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.privacy import NoiseGrid
from fl_app.privacy.client_level import clip_vector
from fl_app.privacy.conditional_rounding import round_conditionally, rounded_norm
from fl_app.privacy.discrete_gaussian import LARGEST_VARIANCE, seeded_bits
from fl_app.privacy.noise_grid import MOST_INFLATION, SMALLEST_VARIANCE


def bits(seed: int):
    return seeded_bits(torch.Generator().manual_seed(seed))


@settings(max_examples=80, deadline=None)
@given(st.floats(1e-4, 1e3), st.floats(1e-3, 10), st.integers(1, 200_000))
def test_the_noise_is_at_least_what_is_accounted_for_and_hardly_more(clip, multiplier, size):
    grid = NoiseGrid.fit(clip=clip, multiplier=multiplier, size=size)
    longest = rounded_norm(clip / grid.step, size)
    assert math.sqrt(grid.variance) >= multiplier * longest
    assert SMALLEST_VARIANCE <= grid.variance <= LARGEST_VARIANCE
    again = NoiseGrid.of_step(grid.step, clip=clip, multiplier=multiplier, size=size)
    assert again == grid
    if grid.variance < LARGEST_VARIANCE / 5:
        assert math.sqrt(grid.variance) * grid.step <= MOST_INFLATION * 1.01 * clip * multiplier


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-9, 1e3))
def test_no_step_that_a_server_names_gives_less_noise(step):
    try:
        grid = NoiseGrid.of_step(step, clip=1.0, multiplier=0.3, size=100)
    except ValueError:
        return
    assert math.sqrt(grid.variance) >= 0.3 * rounded_norm(1.0 / step, 100)


def test_a_sum_has_the_noise_of_all_shares_and_the_sum_of_the_vectors():
    clip, size, clients = 0.5, 20_000, 12
    grid = NoiseGrid.fit(clip=clip, multiplier=0.4, size=size)
    vectors = [clip_vector(torch.randn(size), clip) for _ in range(clients)]
    present = 9
    total = sum(grid.protect(vector, bits(i)) for i, vector in enumerate(vectors[:present]))
    total = (total + grid.shares(clients - present, bits(99))) * grid.step
    noise = total - sum(vector.numpy() for vector in vectors[:present])
    expected = grid.step * math.sqrt(clients * grid.variance + present / 12)
    assert noise.std() == pytest.approx(expected, rel=0.03)
    assert abs(noise.mean()) < 5 * expected / math.sqrt(size)


def test_the_range_holds_the_sum_of_a_cohort():
    clip, size, clients = 1.0, 5_000, 30
    grid = NoiseGrid.fit(clip=clip, multiplier=0.25, size=size)
    worst = np.zeros(size)
    worst[0] = clip
    rounded = round_conditionally(worst / grid.step, clip / grid.step, bits=bits(1))
    total = clients * rounded + grid.shares(clients, bits(2))
    assert np.abs(total).max() * grid.step <= clients * grid.bound(clients)


@pytest.mark.parametrize("step", [0.0, math.inf, math.nan, 10.0, 1e-12])
def test_a_grid_without_room_for_exact_noise_is_refused(step):
    with pytest.raises(ValueError, match="NoiseGrid"):
        NoiseGrid.of_step(step, clip=1.0, multiplier=0.3, size=100)
