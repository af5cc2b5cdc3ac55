"""Epsilon of a set number of clients by privacy loss distributions, against other ways to compute it."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from fl_app.privacy import Ledger, Release, calibrate
from fl_app.privacy.gaussian_privacy import gaussian_epsilon
from fl_app.privacy.loss_without_replacement import epsilon_without_replacement

DELTA = 1e-5
STEPS = [(1.343, 1 / 60, 200), (8.0, 0.2, 100), (20.0, 0.02, 1000), (1.0, 0.5, 2)]


def mixture_delta(epsilon: float, sigma: float, rate: float) -> float:
    """Delta of one step by integration: a mixture against the normal without the client's data."""

    def excess(x: float) -> float:
        without = norm.pdf(x, 0, sigma)
        return max((1 - rate) * without + rate * norm.pdf(x, 2, sigma) - math.exp(epsilon) * without, 0.0)

    return quad(excess, -12 * sigma, 2 + 12 * sigma, limit=500, points=[0, 1, 2, 2 + sigma])[0]


@pytest.mark.parametrize(("sigma", "rate"), [(2.0, 0.5), (1.0, 0.1), (4.0, 0.9)])
def test_one_step_costs_what_integration_finds(sigma, rate):
    exact = brentq(lambda epsilon: mixture_delta(epsilon, sigma, rate) - DELTA, 0, 30)
    found = epsilon_without_replacement([(sigma, rate, 1)], DELTA)
    assert exact - 1e-6 <= found <= exact + 1e-3


@pytest.mark.parametrize("count", [1, 7, 50])
def test_with_everybody_in_every_step_it_is_the_gaussian_mechanism(count):
    exact = gaussian_epsilon(2 * math.sqrt(count) / 4, DELTA)
    assert exact <= epsilon_without_replacement([(4.0, 1.0, count)], DELTA) <= exact * (1 + 1e-4)


@pytest.mark.parametrize(("sigma", "rate", "count"), STEPS)
def test_it_lies_between_what_a_pair_of_federations_shows_and_the_bound_by_divergences(sigma, rate, count):
    pld = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed").pld
    # the client's data against none: a pair that any bound must cover
    pair = pld.privacy_loss_distribution.from_gaussian_mechanism(
        sigma / 2, sampling_prob=rate, value_discretization_interval=1e-3, pessimistic_estimate=False
    )
    least = pair.self_compose(count).get_epsilon_for_delta(DELTA)
    most = Ledger("rdp", sampling="fixed")
    most.charge(0, Release(rate, sigma, count, DELTA))
    assert least <= epsilon_without_replacement([(sigma, rate, count)], DELTA) < most.epsilon()


@pytest.mark.parametrize(("sigma", "rate", "count"), STEPS)
def test_composition_agrees_with_another_implementation(sigma, rate, count):
    pld = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed").pld
    step, points = 1e-3, np.arange(-12_000, 12_001)
    tails = np.abs(points) * step
    inner = np.log1p(np.expm1(tails) / rate)
    deltas = rate * (
        norm.cdf(1 / sigma - inner * sigma / 2) - np.exp(inner) * norm.cdf(-1 / sigma - inner * sigma / 2)
    )
    deltas = np.where(points >= 0, deltas, 1 - np.exp(-tails) + np.exp(-tails) * deltas)
    masses = pld.pld_pmf.create_pmf_pessimistic_connect_dots(step, points, deltas.clip(0))
    other = pld.privacy_loss_distribution.PrivacyLossDistribution(masses)
    expected = other.self_compose(count).get_epsilon_for_delta(DELTA)
    assert epsilon_without_replacement([(sigma, rate, count)], DELTA) == pytest.approx(expected, rel=1e-3)


def test_steps_of_two_kinds_cost_as_much_as_their_parts_allow():
    parts = [(2.0, 0.1, 10), (3.0, 0.2, 10)]
    both = epsilon_without_replacement(parts, DELTA)
    assert max(epsilon_without_replacement([part], DELTA) for part in parts) < both
    assert both < epsilon_without_replacement([(2.0, 0.2, 20)], DELTA)
    halves = [(2.0, 0.1, 4), (2.0, 0.1, 6)]
    assert epsilon_without_replacement(halves, DELTA) == pytest.approx(
        epsilon_without_replacement([(2.0, 0.1, 10)], DELTA), rel=1e-6
    )


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_the_automatic_choice_is_the_least_of_the_bounds(sampling, rate):
    found = {}
    for accountant in ("rdp", "prv", "auto"):
        ledger = Ledger(accountant, sampling=sampling)
        ledger.charge(0, Release(rate, 5.0, 20, DELTA))
        found[accountant] = ledger.epsilon()
    if rate == 1:
        distance = math.sqrt(20) / 5 * (2 if sampling == "fixed" else 1)
        assert found["auto"] == pytest.approx(gaussian_epsilon(distance, DELTA), rel=1e-12)
        assert found["auto"] <= min(found["rdp"], found["prv"])
    else:
        assert found["auto"] == min(found["rdp"], found["prv"])


def test_the_automatic_choice_for_discrete_noise_is_by_divergences():
    assert calibrate(1.0, DELTA, 0.2, 10, "auto", "poisson", True) == calibrate(
        1.0, DELTA, 0.2, 10, "rdp", "poisson", True
    )
    with pytest.raises(ValueError, match="prv accountant knows continuous noise only"):
        Ledger("prv", discrete=True)
