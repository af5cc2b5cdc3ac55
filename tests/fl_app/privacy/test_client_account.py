"""The two epsilons of a federation, and a budget that is not passed."""

import copy
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import norm

from fl_app.privacy import Ledger, Release, calibrate
from fl_app.privacy.client_account import ClientAccount
from fl_app.privacy.gaussian_privacy import gaussian_epsilon
from fl_app.privacy.noise_shares import NoiseShares

DELTA = 1e-5
RATE = 1 / 60


def analytic_epsilon(sigma: float) -> float:
    """Balle and Wang (2018), Theorem 8: the exact epsilon of one Gaussian release."""

    def excess(epsilon: float) -> float:
        a, b = 1 / (2 * sigma), epsilon * sigma
        return norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b) - DELTA

    return brentq(excess, 0, 300)


def test_two_hundred_rounds_cost_what_is_known_of_them():
    account, seen = ClientAccount(DELTA), {}
    for round in range(1, 201):
        account.charge(rate=RATE, multiplier=1.35)
        if round in (60, 152, 157, 200):
            seen[round] = account.epsilon
    assert list(seen.values()) == pytest.approx([0.73, 0.90, 0.91, 0.99], abs=0.015)


def test_the_other_accountant_gives_less_for_the_same_rounds():
    account = ClientAccount(DELTA, accountant="prv")
    for _ in range(200):
        account.charge(rate=RATE, multiplier=1.35)
    assert account.epsilon == pytest.approx(0.85, abs=0.01)


def test_noise_for_a_budget_lasts_for_its_rounds_and_for_no_more_than_a_few():
    sigma = calibrate(1.0, DELTA, RATE, 200)
    assert sigma == pytest.approx(1.35, abs=0.015)
    account, rounds = ClientAccount(DELTA, limit=1.0), 0
    while account.allows(rate=RATE, multiplier=sigma):
        account.charge(rate=RATE, multiplier=sigma)
        rounds += 1
        assert account.epsilon <= 1.0
    assert 200 <= rounds <= 202
    assert account.after(rate=RATE, multiplier=sigma) > 1.0


def test_asking_costs_nothing_and_tells_what_the_round_then_costs():
    account = ClientAccount(DELTA, limit=5.0)
    assert account.epsilon is account.epsilon_server is None
    assert account.allows(rate=0.5, multiplier=2.0)
    assert account.epsilon is None
    ahead = account.after(rate=0.5, multiplier=2.0)
    account.charge(rate=0.5, multiplier=2.0)
    assert account.epsilon == ahead


def test_a_limit_is_that_of_the_models_and_none_allows_all():
    assert ClientAccount(DELTA).allows(rate=1.0, multiplier=0.0)
    assert not ClientAccount(DELTA, limit=100.0).allows(rate=1.0, multiplier=0.0)


def test_the_server_pays_in_full_for_the_client_that_took_part_most():
    account = ClientAccount(DELTA)
    for cohort in ([1, 2], [2, 3], [2], [4]):
        account.charge(rate=0.1, multiplier=2.0, cohort=cohort, server_multiplier=2.0)
    three = Ledger()
    three.charge(0, Release(1.0, 2.0, 3, DELTA))
    assert account.epsilon_server == pytest.approx(three.epsilon(), rel=1e-9)
    assert (
        analytic_epsilon(2 / math.sqrt(3))
        <= account.epsilon_server
        < 1.25 * analytic_epsilon(2 / math.sqrt(3))
    )


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_rounds_of_different_noise_add_up_for_the_server(accountant):
    account, ledger = ClientAccount(DELTA, accountant=accountant), Ledger(accountant)
    for multiplier in (1.0, 2.0, 4.0):
        account.charge(rate=0.01, multiplier=5.0, cohort=[7], server_multiplier=multiplier)
        ledger.charge(0, Release(1.0, multiplier, 1, DELTA))
    assert account.epsilon_server == pytest.approx(ledger.epsilon(), rel=0.01)


@pytest.mark.parametrize("accountant", ["auto", "rdp", "moments"])
def test_the_servers_epsilon_of_discrete_noise_is_a_bound_for_discrete_noise(accountant):
    """The exact epsilon of the continuous Gaussian is none: here the discrete one spends more than delta."""
    deviation, shift = 15, 64
    account = ClientAccount(DELTA, accountant=accountant, discrete=True)
    account.charge(rate=0.01, multiplier=5.0, cohort=[0], server_multiplier=deviation / shift)

    def spent(epsilon: float) -> float:
        """Return delta of the two discrete Gaussians, summed exactly."""
        numbers = np.arange(-40 * deviation, 40 * deviation + shift)
        logs = np.stack([-((numbers - moved) ** 2) / (2 * deviation**2) for moved in (0, shift)])
        near, far = np.exp(logs - logsumexp(logs[0]))
        return float(np.clip(far - math.exp(epsilon) * near, 0, None).sum())

    assert spent(gaussian_epsilon(shift / deviation, DELTA)) > DELTA
    assert spent(account.epsilon_server) <= DELTA


def test_without_secure_aggregation_the_server_learns_far_more():
    epsilons = {}
    for threshold in (67, None):
        shares, account = NoiseShares(1.35, 100, threshold), ClientAccount(DELTA)
        account.charge(rate=RATE, multiplier=1.35, cohort=[0], server_multiplier=shares.for_server(100))
        epsilons[threshold] = account.epsilon_server
    assert epsilons[None] > 15 * epsilons[67]
    assert epsilons[None] >= analytic_epsilon(0.135)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 2.5]), st.sets(st.integers(0, 3)), st.sampled_from([0.5, 2.5])),
        min_size=1,
        max_size=8,
    )
)
def test_both_epsilons_only_rise_and_the_servers_is_the_larger(rounds):
    account, before, server_before = ClientAccount(DELTA), 0.0, 0.0
    for multiplier, cohort, server_multiplier in rounds:
        account.charge(rate=0.1, multiplier=multiplier, cohort=cohort, server_multiplier=server_multiplier)
        assert account.epsilon > before
        assert account.epsilon_server >= max(server_before, account.epsilon)
        before, server_before = account.epsilon, account.epsilon_server


def test_a_skipped_draw_is_charged_to_who_sees_the_models():
    skipped, held = ClientAccount(DELTA), ClientAccount(DELTA)
    skipped.charge(rate=0.1, multiplier=1.0)
    held.charge(rate=0.1, multiplier=1.0, cohort=[1, 2], server_multiplier=1.0)
    assert skipped.epsilon == held.epsilon
    assert skipped.epsilon_server == skipped.epsilon < held.epsilon_server


def test_dropouts_cost_the_server_more_and_observers_of_the_models_nothing():
    def epsilons(survivors: int) -> tuple[float, float]:
        account, shares = ClientAccount(DELTA), NoiseShares(1.0, 30, 21)
        account.charge(rate=0.1, multiplier=1.0, cohort=[1], server_multiplier=shares.for_server(survivors))
        return account.epsilon, account.epsilon_server

    assert epsilons(21)[0] == epsilons(30)[0]
    assert epsilons(21)[1] > epsilons(30)[1]


@pytest.mark.parametrize("left_out", [1e-12, 1e-3])
def test_rounds_that_may_stand_still_cost_delta_or_everything(left_out):
    """Two worlds that differ by an event of chance p are told apart by it: nothing is promised below that."""
    plain, account = ClientAccount(DELTA), ClientAccount(DELTA, left_out=left_out)
    for one in (plain, account):
        one.charge(rate=RATE, multiplier=1.35)
    assert account.epsilon > plain.epsilon
    assert math.isinf(account.epsilon) == (left_out > DELTA)


def test_a_fixed_draw_compares_federations_with_another_client_in_ones_place():
    epsilons = {}
    for sampling in ("poisson", "fixed"):
        account = ClientAccount(DELTA, sampling=sampling)
        for _ in range(200):
            account.charge(rate=RATE, multiplier=1.343)
        epsilons[sampling] = account.epsilon
    assert epsilons["poisson"] == pytest.approx(1.0, abs=0.01)
    assert epsilons["fixed"] > 4.6  # by privacy loss distributions; the bound used here is looser


def test_a_release_without_noise_costs_everything():
    account = ClientAccount(DELTA)
    account.charge(rate=0.1, multiplier=1.0, cohort=[1], server_multiplier=0.0)
    assert account.epsilon < account.epsilon_server == math.inf
    account.charge(rate=0.1, multiplier=0.0)
    assert account.epsilon == math.inf


def test_a_copy_of_the_fields_goes_on_where_it_was():
    account = ClientAccount(DELTA, limit=3.0)
    for client in (1, 2, 1):
        account.charge(rate=0.1, multiplier=1.0, cohort=[client], server_multiplier=1.0)
    restored = copy.deepcopy(account)
    for one in (account, restored):
        one.charge(rate=0.2, multiplier=1.0, cohort=[2], server_multiplier=2.0)
    assert (restored.epsilon, restored.epsilon_server) == (account.epsilon, account.epsilon_server)


@pytest.mark.parametrize(
    ("given_settings", "words"),
    [
        ({"delta": 0.0}, "delta must be in"),
        ({"delta": DELTA, "limit": 0.0}, "limit must be above 0"),
        ({"delta": DELTA, "limit": math.nan}, "limit must be above 0"),
        ({"delta": DELTA, "accountant": "gdp"}, "accountant must be one of rdp, prv"),
    ],
)
def test_budgets_that_make_no_sense_are_refused(given_settings, words):
    with pytest.raises(ValueError, match=words):
        ClientAccount(**given_settings)
