"""How noise is shared out: variances added up by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.privacy.noise_shares import NoiseShares

cohorts = st.integers(2, 300).flatmap(
    lambda k: st.tuples(st.just(k), st.integers(2 * k // 3 + 1, k)).flatmap(
        lambda kt: st.tuples(st.just(kt[0]), st.just(kt[1]), st.integers(0, kt[0]))
    )
)


@given(cohorts, st.floats(0.1, 10))
def test_every_released_sum_carries_the_same_noise_whoever_drops_out(cohort, sigma):
    clients, threshold, survivors = cohort
    for shares in (NoiseShares(sigma, clients, threshold), NoiseShares(sigma, clients)):
        variance = survivors * shares.local**2 + shares.missing(survivors) ** 2
        assert math.sqrt(variance) == pytest.approx(sigma)


@given(cohorts, st.floats(0.1, 10))
def test_the_server_faces_the_shares_of_the_other_survivors(cohort, sigma):
    clients, threshold, survivors = cohort
    shares = NoiseShares(sigma, clients, threshold)
    assert shares.for_server(survivors) ** 2 == pytest.approx(max(0, survivors - 1) * shares.local**2)
    assert shares.for_server() == shares.for_server(threshold)


def test_without_secure_aggregation_the_server_faces_one_share_alone():
    shares = NoiseShares(1.35, 100)
    assert shares.for_server(100) == shares.for_server() == shares.local == pytest.approx(0.135)


def test_who_is_alone_is_not_protected_by_others():
    assert NoiseShares(2.0, 1, 1).for_server(1) == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ((-1.0, 5), "noise_multiplier"),
        ((math.inf, 5), "noise_multiplier"),
        ((1.0, 0), "cohort"),
        ((1.0, 5, 6), r"the threshold of 5 clients must be in 4\.\.5, got 6"),
        ((1.0, 6, 4), r"the threshold of 6 clients must be in 5\.\.6, got 4"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=f"NoiseShares: {words}"):
        NoiseShares(*settings)


def test_more_survivors_than_clients_are_refused():
    for ask in (NoiseShares(1.0, 5).missing, NoiseShares(1.0, 5, 4).for_server):
        with pytest.raises(ValueError, match=r"survivors must be in 0\.\.5, got 6"):
            ask(6)
