"""How noise is shared out: variances added up by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.privacy.noise_shares import NoiseShares, whole_noise

cohorts = st.integers(2, 300).flatmap(
    lambda k: st.tuples(st.just(k), st.integers(2 * k // 3 + 1, k)).flatmap(
        lambda kt: st.tuples(st.just(kt[0]), st.just(kt[1]), st.integers(kt[1], kt[0]))
    )
)


def total(shares: NoiseShares, clients: int) -> float:
    """The noise multiplier of so many independent shares together."""
    return math.sqrt(clients * shares.local**2)


@given(cohorts, st.floats(0.1, 10))
def test_any_survivors_above_the_threshold_carry_what_is_counted_even_without_oneself(cohort, sigma):
    clients, threshold, survivors = cohort
    shares = NoiseShares(sigma, clients, threshold)
    assert shares.local >= sigma / math.sqrt(threshold)
    assert total(shares, survivors) >= sigma * (1 - 1e-12)
    assert shares.of_sum(survivors) <= total(shares, survivors - 1) * (1 + 1e-12)
    assert (
        shares.of_sum(survivors) == shares.of_sum(clients) == shares.least() == shares.for_server(survivors)
    )
    assert shares.of_sum(survivors) == pytest.approx(total(shares, threshold - 1))


@given(st.integers(2, 300), st.integers(2, 300))
def test_without_dropouts_the_noise_of_a_sum_does_not_tell_how_many_took_part(one, other):
    noise = [total(NoiseShares(1.35, k, 2 * k // 3 + 1), k) for k in (one, other)]
    assert noise[0] == pytest.approx(noise[1]) == pytest.approx(1.35 * math.sqrt(1.5))


@given(cohorts, st.floats(0.1, 10))
def test_shares_of_the_cohort_lose_noise_with_every_dropout(cohort, sigma):
    clients, threshold, survivors = cohort
    shares = NoiseShares(sigma, clients, threshold, share="cohort")
    assert total(shares, clients) == pytest.approx(sigma)
    assert shares.of_sum(clients) == pytest.approx(sigma)
    assert shares.of_sum(survivors) <= total(shares, survivors) * (1 + 1e-12)
    # the other federation: one client fewer, each with a larger share
    without = NoiseShares(sigma, clients - 1, None, share="cohort")
    assert shares.of_sum(survivors) == pytest.approx(total(without, survivors - 1))
    assert shares.least() == shares.of_sum(threshold) <= shares.of_sum(survivors)


def test_without_secure_aggregation_the_server_faces_one_share_alone():
    shares = NoiseShares(1.35, 100)
    assert shares.for_server(100) == shares.local == pytest.approx(0.135)
    assert shares.of_sum(100) == pytest.approx(1.35)
    assert shares.of_sum(90) == pytest.approx(1.35 * math.sqrt(89 / 99))
    assert NoiseShares(1.35, 100, share="cohort") != shares
    assert NoiseShares(1.35, 100, share="cohort").local == shares.local


@pytest.mark.parametrize(
    "alone",
    [NoiseShares(2.0, 1), NoiseShares(2.0, 1, 1), NoiseShares(2.0, 1, 1, "cohort")],
)
def test_who_is_alone_is_not_protected_by_others(alone):
    assert alone.of_sum(1) == 0


@given(st.integers(2, 1000), st.integers(0, 500), st.floats(0.01, 100))
def test_noise_for_a_threshold_makes_up_for_the_share_that_does_not_count(least, more, counted):
    whole, cohort = whole_noise(counted, least), least + more
    assert NoiseShares(whole, cohort, 2 * cohort // 3 + 1).least() >= counted
    tightest = min(NoiseShares(whole, k, 2 * k // 3 + 1).least() for k in range(least, least + 3))
    assert tightest == pytest.approx(counted)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((-1.0, 5), "noise_multiplier"),
        ((math.inf, 5), "noise_multiplier"),
        ((1.0, 0), "cohort"),
        ((1.0, 5, 6), r"the threshold of 5 clients must be in 4\.\.5, got 6"),
        ((1.0, 6, 4), r"the threshold of 6 clients must be in 5\.\.6, got 4"),
        ((1.0, 5, 4, "equal"), "share must be one of threshold, cohort; got 'equal'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=f"NoiseShares: {words}"):
        NoiseShares(*settings)


def test_more_survivors_than_clients_are_refused():
    with pytest.raises(ValueError, match=r"survivors must be in 0\.\.5, got 6"):
        NoiseShares(1.0, 5).of_sum(6)
    with pytest.raises(ValueError, match="whole_noise: cohort must be at least 2"):
        whole_noise(1.0, 1)
