"""The bound on reconstructions against integrals, simulated attacks and its limits."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from fl_app.privacy.reconstruction import Exposure, exposure_of, prior_success, reconstruction_bound

PRIORS = st.floats(1e-6, 1 - 1e-6)
SIGMAS = st.floats(0.05, 50)


def full(sigma: float, steps: int = 1, *, discrete: bool = False) -> Exposure:
    return exposure_of([(sigma, steps)], [], discrete=discrete)


def drawn(sigma: float, rate: float, steps: int, *, discrete: bool = False) -> Exposure:
    return exposure_of([], [(sigma, rate, steps)], discrete=discrete)


def simulated_blow_up(prior: float, sigma: float, rate: float, steps: int, draws: int = 200_000) -> float:
    """The estimate of Hayes et al.: the likelihood ratio's quantile without the sample, its power with it."""
    generator = np.random.default_rng(0)

    def log_ratio(x: np.ndarray) -> np.ndarray:
        return np.log1p(rate * np.expm1((2 * x - 1) / (2 * sigma**2))).sum(axis=1)

    without = generator.normal(0, sigma, (draws, steps))
    inside = generator.random((draws, steps)) < rate
    threshold = np.quantile(log_ratio(without), 1 - prior)
    return float((log_ratio(generator.normal(0, sigma, (draws, steps)) + inside) > threshold).mean())


@pytest.mark.parametrize(("prior", "sigma"), [(0.1, 1.0), (0.01, 0.5), (0.5, 3.0)])
def test_one_step_is_the_integral_of_the_best_test(prior, sigma):
    threshold = norm.isf(prior) * sigma
    integral, _ = quad(lambda x: norm.pdf(x, 1, sigma), threshold, threshold + 40 * sigma)
    assert reconstruction_bound(prior, full(sigma)) == pytest.approx(integral, rel=1e-6)


@pytest.mark.parametrize(("prior", "sigma", "steps"), [(0.1, 2.0, 1), (0.05, 3.0, 6)])
def test_steps_with_the_sample_are_attained_by_the_likelihood_ratio(prior, sigma, steps):
    assert reconstruction_bound(prior, full(sigma, steps)) == pytest.approx(
        simulated_blow_up(prior, sigma, 1.0, steps), abs=0.006
    )


@pytest.mark.parametrize(
    ("prior", "sigma", "rate", "steps"),
    [(0.1, 1.0, 0.2, 5), (0.01, 0.7, 0.5, 3), (0.05, 0.4, 0.05, 10), (0.3, 2.0, 0.3, 20)],
)
def test_no_simulated_attack_on_drawn_steps_beats_the_bound(prior, sigma, rate, steps):
    simulated = simulated_blow_up(prior, sigma, rate, steps)
    bound = reconstruction_bound(prior, drawn(sigma, rate, steps))
    assert prior < simulated <= bound + 0.005
    assert bound < reconstruction_bound(prior, full(sigma, steps))


def test_the_bound_of_drawn_steps_is_the_sum_over_all_patterns():
    prior, sigma, rate, steps = 0.07, 0.8, 0.3, 4
    total = sum(
        rate ** sum(pattern)
        * (1 - rate) ** (steps - sum(pattern))
        * norm.cdf(norm.ppf(prior) + math.sqrt(sum(pattern)) / sigma)
        for pattern in itertools.product((0, 1), repeat=steps)
    )
    assert reconstruction_bound(prior, drawn(sigma, rate, steps)) == pytest.approx(total, rel=1e-12)


def test_the_bound_for_discrete_noise_is_the_least_over_the_orders():
    prior, mu = 0.02, 1.3
    orders = np.linspace(1.001, 60, 200_000)
    least = np.exp((orders - 1) / orders * (math.log(prior) + orders * mu**2 / 2)).min()
    bound = reconstruction_bound(prior, full(1 / mu, discrete=True))
    assert bound == pytest.approx(float(least), rel=1e-6)
    assert bound > reconstruction_bound(prior, full(1 / mu))


@pytest.mark.parametrize("sigma", [0.6, 1.5])
def test_exact_discrete_gaussians_stay_below_the_bound_for_discrete_noise(sigma):
    grid = np.arange(-60, 61)
    without = np.exp(-(grid**2) / (2 * sigma**2))
    shifted = np.exp(-((grid - 1) ** 2) / (2 * sigma**2))
    without, shifted = without / without.sum(), shifted / shifted.sum()
    # tests of whole tails, the best ones at their levels
    for cut in range(40, 80):
        level, power = without[cut:].sum(), shifted[cut:].sum()
        assert power <= reconstruction_bound(min(level, 1.0), full(sigma, discrete=True)) + 1e-12


@settings(max_examples=40, deadline=None)
@given(PRIORS, SIGMAS, st.floats(0.01, 1), st.integers(1, 30), st.booleans())
def test_the_bound_grows_with_prior_steps_and_signal_and_never_falls_below_the_prior(
    prior, sigma, rate, steps, discrete
):
    for make in (
        lambda s, n: full(s, n, discrete=discrete),
        lambda s, n: drawn(s, rate, n, discrete=discrete),
    ):
        bound = reconstruction_bound(prior, make(sigma, steps))
        assert prior - 1e-9 <= bound <= 1
        assert bound <= reconstruction_bound((1 + prior) / 2, make(sigma, steps)) + 1e-9
        assert bound <= reconstruction_bound(prior, make(sigma, steps + 1)) + 1e-9
        assert bound <= reconstruction_bound(prior, make(sigma / 2, steps)) + 1e-9


@pytest.mark.parametrize("discrete", [False, True])
def test_noise_without_end_leaves_the_prior_and_none_gives_all(discrete):
    assert reconstruction_bound(0.1, full(1e9, discrete=discrete)) == pytest.approx(0.1, abs=1e-6)
    assert reconstruction_bound(0.1, full(0.0, discrete=discrete)) == 1
    assert reconstruction_bound(0.1, full(1e-3, discrete=discrete)) == pytest.approx(1)
    assert reconstruction_bound(0.1, drawn(1e9, 0.5, 7, discrete=discrete)) == pytest.approx(0.1, abs=1e-6)
    # a sample that no step has drawn is still safe
    missed = 0.5**7
    assert reconstruction_bound(0.1, drawn(0.0, 0.5, 7, discrete=discrete)) == pytest.approx(1 - missed * 0.9)


def test_hidden_releases_that_differ_count_as_the_worst_of_them():
    exposure = exposure_of([(2.0, 4), (1.0, 1)], [(3.0, 0.1, 5), (2.0, 0.05, 7)])
    assert exposure == Exposure(signal=2.0, noise_multiplier=2.0, rate=0.1, steps=12)


def test_the_prior_is_the_share_of_candidates_that_one_guess_meets():
    levels = torch.tensor([0.0, 0.01, 0.02, 0.5, 0.9, 1.0])
    images = levels.view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    # a grey of 0.01 is within 0.011 of the first three; nothing meets two of the others
    assert prior_success(images, labels, 0.011**2) == (3 / 6, 3 / 4)
    assert prior_success(images, labels, 1e-9) == (1 / 6, 1 / 2)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.floats(1e-4, 0.1))
def test_no_guess_at_random_beats_the_prior(seed, mse_below):
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(12, 1, 2, 2, generator=generator)
    labels = torch.randint(0, 2, (12,), generator=generator)
    prior, of_class = prior_success(images, labels, mse_below)
    guesses = torch.cat([images, images.mean(0, keepdim=True), (images[:6] + images[6:]) / 2])
    right = (guesses[:, None] - images[None]).square().flatten(2).mean(2) < mse_below
    assert 1 / 12 <= right.double().mean(1).max() <= prior + 1e-12
    for label in labels.unique():
        assert right[:, labels == label].double().mean(1).max() <= of_class + 1e-12


@pytest.mark.parametrize("fault", [{"signal": -1}, {"rate": 1.5}, {"steps": -1}, {"noise_multiplier": -1.0}])
def test_an_exposure_that_cannot_be_is_refused(fault):
    with pytest.raises(ValueError, match=next(iter(fault))):
        Exposure(**{"signal": 1.0} | fault)


def test_a_prior_that_is_no_chance_is_refused():
    with pytest.raises(ValueError, match="prior"):
        reconstruction_bound(1.5, full(1.0))
