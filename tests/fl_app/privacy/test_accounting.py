"""The cost of releases: against Opacus' accountants, a closed form and the analytic Gaussian mechanism."""

import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import RDPAccountant
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from fl_app.privacy import Ledger, Release, calibrate

DELTA = 1e-5


def ledger_of(*releases: Release, accountant: str = "rdp") -> Ledger:
    ledger = Ledger(accountant)
    for release in releases:
        ledger.charge(0, release)
    return ledger


def log_moment(q: float, sigma: float, order: int) -> float:
    """Mironov, Talwar and Zhang (2019), §3.3: the sum over how many of ``order`` copies hold the record."""
    terms = [
        math.lgamma(order + 1)
        - math.lgamma(k + 1)
        - math.lgamma(order - k + 1)
        + (order - k) * math.log1p(-q)
        + k * math.log(q)
        + k * (k - 1) / (2 * sigma**2)
        for k in range(order + 1)
    ]
    return float(logsumexp(terms))


def closed_form_epsilon(*releases: Release) -> float:
    """The least bound at a whole order, converted as in Canonne, Kamath and Steinke (2020), Prop. 12."""
    bounds = []
    for order in range(2, 128):
        divergence = sum(
            r.steps * log_moment(r.sample_rate, r.noise_multiplier, order) / (order - 1) for r in releases
        )
        bounds.append(divergence + math.log1p(-1 / order) - (math.log(DELTA) + math.log(order)) / (order - 1))
    return min(bounds)


def analytic_epsilon(sigma: float) -> float:
    """Balle and Wang (2018), Theorem 8: the exact epsilon of one Gaussian release."""

    def excess(epsilon: float) -> float:
        a, b = 1 / (2 * sigma), epsilon * sigma
        return norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b) - DELTA

    return brentq(excess, 0, 100)


def test_nothing_released_has_no_epsilon():
    assert Ledger().epsilon() is None


@pytest.mark.parametrize(
    ("rate", "sigma", "steps"),
    [(0.01, 1.0, 1000), (0.16, 1.4, 200), (0.16, 1.4, 1), (0.5, 4.0, 100), (1 / 60, 1.35, 200)],
)
def test_epsilon_agrees_with_the_closed_form_at_whole_orders(rate, sigma, steps):
    release = Release(rate, sigma, steps, DELTA)
    epsilon, expected = ledger_of(release).epsilon(), closed_form_epsilon(release)
    assert 0.95 * expected < epsilon <= expected * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.01, 0.6, 300), (0.16, 1.4, 200), (0.9, 6.0, 200)])
def test_epsilon_is_near_that_of_opacus_own_accountant(rate, sigma, steps):
    opacus = RDPAccountant()
    opacus.history = [(sigma, rate, steps), (2 * sigma, rate, 7)]
    ours = ledger_of(Release(rate, sigma, steps, DELTA), Release(rate, 2 * sigma, 7, DELTA))
    assert ours.epsilon() == pytest.approx(opacus.get_epsilon(DELTA), rel=0.02)


def test_a_run_of_two_hundred_rounds_costs_what_is_known_of_it():
    epsilons = [ledger_of(Release(1 / 60, 1.35, rounds, DELTA)).epsilon() for rounds in (60, 152, 157, 200)]
    assert epsilons == pytest.approx([0.73, 0.90, 0.91, 0.99], abs=0.015)
    assert ledger_of(Release(1 / 60, 1.35, 200, DELTA), accountant="prv").epsilon() == pytest.approx(
        0.85, abs=0.01
    )


@pytest.mark.parametrize("sigma", [1.0, 3.0, 20.0])
def test_a_full_batch_is_the_gaussian_mechanism(sigma):
    """At a sampling rate of 1, n releases at sigma are as one at sigma / sqrt(n), whose epsilon is known."""
    release = Release(1.0, sigma, 16, DELTA)
    exact = analytic_epsilon(sigma / 4)
    assert exact <= ledger_of(release).epsilon() < 1.15 * exact + 0.1
    assert exact <= ledger_of(release, accountant="prv").epsilon() < exact + 0.05


def test_the_tighter_accountant_gives_less():
    history = [Release(0.16, 1.4, 150, DELTA), Release(0.05, 1.0, 30, DELTA)]
    assert ledger_of(*history, accountant="prv").epsilon() < ledger_of(*history).epsilon()


def test_losses_that_would_fill_the_memory_are_not_listed():
    endless = Release(0.5, 490.0, 1 << 20, DELTA)
    bound = ledger_of(endless).epsilon()
    for accountant in ("prv", "auto"):
        assert ledger_of(endless, accountant=accountant).epsilon() == bound


def test_a_release_without_noise_costs_everything():
    for accountant in ("rdp", "prv"):
        ledger = ledger_of(Release(0.1, 1.0, 5, DELTA), accountant=accountant)
        ledger.charge(0, Release(0.1, 0.0, 1, DELTA))
        assert ledger.epsilon() == math.inf


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.1, 0.3, 1.0]), st.sampled_from([1.0, 2.5]), st.integers(1, 50)),
        min_size=1,
        max_size=6,
    )
)
def test_a_history_costs_more_than_its_parts_and_the_order_does_not_matter(parts):
    releases = [Release(rate, sigma, steps, DELTA) for rate, sigma, steps in parts]
    ledger, so_far = Ledger(), 0.0
    for release in releases:
        ledger.charge(0, release)
        assert ledger.epsilon() > so_far
        so_far = ledger.epsilon()
    assert ledger_of(*reversed(releases)).epsilon() == pytest.approx(so_far, rel=1e-12)
    alone = sum(ledger_of(release).epsilon() for release in releases)
    assert so_far <= alone * (1 + 1e-9)


def test_the_client_that_spent_most_counts():
    ledger = Ledger()
    for _ in range(3):
        ledger.charge(1, Release(0.1, 1.0, 1, DELTA))
    ledger.charge(2, Release(0.5, 1.0, 1, DELTA))
    alone = [ledger_of(Release(0.1, 1.0, 3, DELTA)), ledger_of(Release(0.5, 1.0, 1, DELTA))]
    assert ledger.epsilon() == max(one.epsilon() for one in alone)
    assert alone[0].epsilon() != alone[1].epsilon()


def test_many_rounds_are_one_entry_and_a_copy_of_the_fields_goes_on_where_it_was():
    ledger = Ledger()
    for _ in range(10_000):
        ledger.charge(4, Release(0.01, 2.0, 3, DELTA))
    assert ledger.spent == {4: {(0.01, 2.0): 30_000}}
    restored = Ledger(ledger.accountant, ledger.delta, {who: dict(s) for who, s in ledger.spent.items()})
    for one in (ledger, restored):
        one.charge(4, Release(0.02, 2.0, 1, DELTA))
    assert restored.epsilon() == ledger.epsilon()


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps"),
    [
        (10.7, 0.16, 200),
        (10.7, 1.0, 200),
        (10.7, 0.5, 100),
        (1.0, 0.01, 600),
        (0.05, 0.02, 100),
        (2000, 1.0, 10),
        (3000, 1.0, 10),
    ],
)
def test_calibrated_noise_uses_the_budget_and_keeps_it(epsilon, rate, steps):
    ledger = Ledger()
    sigma = calibrate(epsilon, DELTA, rate, steps)
    for _ in range(steps):
        ledger.charge(0, Release(rate, sigma, 1, DELTA))
    assert 0.99 * epsilon < ledger.epsilon() <= epsilon


def test_accounting_is_silent_about_its_orders():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger_of(Release(0.001, 30.0, 1, DELTA)).epsilon()
        ledger_of(Release(0.5, 0.05, 500, DELTA)).epsilon()
        ledger_of(Release(1.0, 5.0, 5, DELTA), accountant="prv").epsilon()
        calibrate(0.02, DELTA, 0.1, 10)


def test_a_budget_that_cannot_be_shown_is_refused():
    with pytest.raises(
        ValueError, match=r"calibrate: no noise multiplier .* brings epsilon to 0\.001 at delta=1e-05"
    ):
        calibrate(0.001, DELTA, 0.1, 10)


def test_an_accountant_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"accountant must be one of .*; got 'gdp'"):
        Ledger("gdp")


def test_epsilons_at_different_deltas_are_not_mixed():
    ledger = ledger_of(Release(0.1, 1.0, 1, DELTA))
    with pytest.raises(ValueError, match=r"client 3: delta must be 1e-05, got 0\.001"):
        ledger.charge(3, Release(0.1, 1.0, 1, 1e-3))
    assert 3 not in ledger.spent


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sample_rate": 0.0}, "sample_rate must be in"),
        ({"sample_rate": 1.01}, "sample_rate must be in"),
        ({"sample_rate": math.nan}, "sample_rate must be in"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be"),
        ({"noise_multiplier": math.inf}, "noise_multiplier must be"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"delta": 0.0}, "delta must be in"),
        ({"delta": 1.0}, "delta must be in"),
    ],
)
def test_what_no_mechanism_releases_is_refused(change, words):
    fields = {"sample_rate": 0.1, "noise_multiplier": 1.0, "steps": 1, "delta": DELTA}
    with pytest.raises(ValueError, match=f"Release: {words}"):
        Release(**fields | change)
