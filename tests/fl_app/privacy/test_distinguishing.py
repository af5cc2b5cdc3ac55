"""Telling two worlds apart: the Gaussian is found within its limits, and no limit is too bold."""

import math

import pytest
import torch
from scipy.stats import binomtest, norm

from fl_app.privacy.distinguishing import along, distinguish, energy
from fl_app.privacy.gaussian_privacy import gaussian_epsilon

DIRECTION = torch.tensor([3.0, 4.0, 0.0])


def gaussian(sigma: float, seed: int):
    generator = torch.Generator().manual_seed(seed)
    shift = DIRECTION / DIRECTION.norm()
    return lambda present: shift * present + sigma * torch.randn(3, generator=generator)


@pytest.mark.parametrize("distance", [0.1, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
def test_the_exact_epsilon_of_a_gaussian_spends_delta(distance, delta):
    epsilon = gaussian_epsilon(distance, delta)
    a, b = distance / 2, epsilon / distance
    spent = norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b)
    assert spent == pytest.approx(delta, rel=1e-3) or (epsilon == 0 and spent <= delta)


def test_worlds_that_are_the_same_cost_nothing_and_far_ones_everything():
    assert gaussian_epsilon(0.0, 1e-5) == gaussian_epsilon(-1.0, 1e-5) == 0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    with pytest.raises(ValueError, match="delta"):
        gaussian_epsilon(1.0, 0.0)


@pytest.mark.parametrize(("sigma", "trials"), [(0.5, 4000), (1.0, 4000), (2.0, 16_000)])
def test_the_epsilon_of_a_gaussian_is_recovered_within_its_limits(sigma, trials):
    # limits are as wide for any sigma, so a smaller distance takes more trials for the same relative width
    found = distinguish(gaussian(sigma, 1), along(DIRECTION), trials=trials, delta=1e-5, confidence=0.99)
    exact = gaussian_epsilon(1 / sigma, 1e-5)
    assert found.gaussian.low <= exact <= found.gaussian.high
    assert found.gaussian.low >= 0.6 * exact
    assert not found.refutes(1 / sigma)
    assert 0 <= found.lower_bound <= exact


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_the_bound_without_any_assumption_comes_close_where_delta_is_large(sigma):
    found = distinguish(gaussian(sigma, 2), along(DIRECTION), trials=4000, delta=0.05)
    exact = gaussian_epsilon(1 / sigma, 0.05)
    assert 0.6 * exact <= found.lower_bound <= exact


def test_limits_hold_as_often_as_they_say():
    confidence, runs = 0.9, 100
    bold = missed = 0
    for seed in range(runs):
        found = distinguish(
            gaussian(1.0, seed), along(DIRECTION), trials=100, delta=0.05, confidence=confidence
        )
        bold += found.lower_bound > gaussian_epsilon(1.0, 0.05)
        missed += not found.distance[0] <= 1.0 <= found.distance[1]
    for failures in (bold, missed):
        assert binomtest(failures, runs, 1 - confidence, alternative="greater").pvalue > 1e-3


def test_worlds_without_a_difference_are_not_told_apart():
    found = distinguish(gaussian(1e9, 3), along(DIRECTION), trials=1000, delta=1e-5)
    assert found.lower_bound == 0
    assert found.distance[0] < 0 < found.distance[1]
    assert found.gaussian.low == 0


def test_noise_that_grows_with_a_client_is_seen_by_its_size():
    generator = torch.Generator().manual_seed(0)
    release = lambda present: (1.2 if present else 1.0) * torch.randn(1000, generator=generator)  # noqa: E731
    found = distinguish(release, energy, trials=400, delta=1e-5)
    assert found.lower_bound > 3
    assert found.refutes(1.0)


@pytest.mark.parametrize("wrong", [{"trials": 3}, {"delta": 0.0}, {"confidence": 1.0}])
def test_settings_that_measure_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="distinguish"):
        distinguish(gaussian(1.0, 0), energy, **({"trials": 10, "delta": 0.1} | wrong))
