"""A set number of clients: the divergence against an independent accountant, and against no sampling."""

import math

import pytest

from fl_app.privacy import calibrate
from fl_app.privacy.sampling_without_replacement import divergence_without_replacement

dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")


def theirs(sigma: float, population: int, drawn: int, order: int) -> float:
    """Their noise multiplier is over the change of a sum, which is two clipping bounds here."""
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        population, drawn, dp_accounting.GaussianDpEvent(sigma / 2)
    )
    accountant = dp_accounting.rdp.RdpAccountant(
        [order], dp_accounting.NeighboringRelation.REPLACE_ONE
    ).compose(event)
    return float(accountant.rdp[0])


@pytest.mark.parametrize("order", [2, 3, 4, 8, 16, 32])
@pytest.mark.parametrize(
    ("sigma", "population", "drawn"), [(4.0, 6000, 100), (8.0, 1000, 100), (2.5, 500, 5)]
)
def test_it_is_no_less_than_the_tighter_bound_of_another_library(sigma, population, drawn, order):
    ours = divergence_without_replacement(sigma, drawn / population, order)
    other = theirs(sigma, population, drawn, order)
    assert other * (1 - 1e-6) <= ours <= 4 * other


@pytest.mark.parametrize("order", [2, 7, 64])
def test_drawing_everybody_is_the_gaussian_mechanism(order):
    assert divergence_without_replacement(3.0, 1.0, order) == pytest.approx(order * 4 / (2 * 9))
    assert divergence_without_replacement(3.0, 0.01, order) < divergence_without_replacement(3.0, 1.0, order)


def test_no_noise_costs_everything_and_broken_orders_are_refused():
    assert divergence_without_replacement(0.0, 0.1, 4) == math.inf
    with pytest.raises(ValueError, match="whole number"):
        divergence_without_replacement(1.0, 0.1, 2.5)


def test_the_paper_s_noise_is_that_of_its_own_conversion():
    """Kerkouche et al. name sigma = 1.54 for epsilon = 1 after 200 rounds of 100 in 6,000 clients."""
    assert calibrate(1.0, 1e-5, 1 / 60, 200, "moments") == pytest.approx(1.541, abs=0.001)
    assert calibrate(1.0, 1e-5, 1 / 60, 200, "rdp") == pytest.approx(1.342, abs=0.001)
    assert calibrate(1.0, 1e-5, 1 / 60, 200, "prv") == pytest.approx(1.231, abs=0.003)
