"""Correlated noise: its factor, its sensitivity by exhaustion, and the stream of noise itself."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.privacy.correlated_noise import NoiseStream, band, squared_sensitivity


def factor(separation: int, rounds: int) -> np.ndarray:
    """The matrix C, entry by entry."""
    coefficients = band(separation)
    return np.array(
        [
            [coefficients[t - s] if 0 <= t - s < len(coefficients) else 0.0 for s in range(rounds)]
            for t in range(rounds)
        ]
    )


def test_a_whole_band_is_the_square_root_of_the_prefix_sums():
    root = factor(12, 12)
    np.testing.assert_allclose(root @ root, np.tril(np.ones((12, 12))), atol=1e-14)


@pytest.mark.parametrize(("separation", "rounds"), [(1, 5), (2, 7), (3, 7), (3, 8), (5, 9), (9, 6)])
def test_no_participation_that_far_apart_moves_the_releases_by_more_than_the_sensitivity(separation, rounds):
    matrix = factor(separation, rounds)
    apart = [
        pattern
        for pattern in itertools.product((0, 1), repeat=rounds)
        if all(b - a >= separation for a, b in itertools.pairwise(np.flatnonzero(pattern)))
    ]
    # vectors of one entry, each as long as clipping allows, with any signs
    most = max(
        float(np.sum((matrix @ (np.array(pattern) * signs)) ** 2))
        for pattern in apart
        for signs in itertools.product((-1, 1), repeat=rounds)
    )
    assert squared_sensitivity(separation, rounds) == pytest.approx(most, rel=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 15), st.integers(0, 2**32 - 1))
def test_the_stream_is_the_inverse_of_the_factor_applied_to_fresh_noise(separation, rounds, seed):
    fresh = torch.randn(rounds, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    stream = NoiseStream(separation)
    noise = torch.stack([stream.advance(one) for one in fresh])
    expected = np.linalg.solve(factor(separation, rounds), fresh.numpy())
    np.testing.assert_allclose(noise.numpy(), expected, atol=1e-9)
    assert len(stream.past) == min(separation - 1, rounds)


def test_a_stream_goes_on_from_its_past_bit_for_bit():
    fresh = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole, first, second = NoiseStream(4), NoiseStream(4), NoiseStream(4)
    expected = [whole.advance(one) for one in fresh]
    for one in fresh[:5]:
        first.advance(one)
    second.past = [noise.clone() for noise in first.past]
    assert all(
        torch.equal(second.advance(one), wanted) for one, wanted in zip(fresh[5:], expected[5:], strict=True)
    )


def test_the_models_of_clients_that_take_turns_have_less_noise_than_with_independent_noise_at_equal_epsilon():
    separation, rounds = 5, 100
    sums = np.tril(np.ones((rounds, rounds)))

    def error(matrix: np.ndarray) -> float:
        """Squared noise of the models at a signal of 1."""
        columns = max(float(np.sum(matrix[:, turn::separation].sum(1) ** 2)) for turn in range(separation))
        return columns * float(np.sum((sums @ np.linalg.inv(matrix)) ** 2))

    assert error(factor(separation, rounds)) < 0.3 * error(np.eye(rounds))


def test_a_separation_of_nothing_is_refused():
    with pytest.raises(ValueError, match="separation must be at least 1, got 0"):
        band(0)
