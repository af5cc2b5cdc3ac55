"""How noise is shared out: variances added up by hand."""

import itertools
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


@pytest.mark.parametrize("honest", [1.0, 0.9, 0.8, 0.5, 0.2])
@pytest.mark.parametrize("clients", [3, 5, 6])
def test_no_choice_of_colluding_clients_and_dropouts_leaves_less_noise_than_accounted_for(clients, honest):
    shares = NoiseShares(2.0, clients, clients, honest)
    others = range(1, clients)  # client 0 is the one to be protected
    for count in range(1, clients + 1):
        left = min(
            sum(shares.local**2 for other in survivors if other not in colluding)
            for survivors in itertools.combinations(others, count - 1)
            for size in range(clients)
            if size <= (1 - honest) * clients + 1e-6
            for colluding in itertools.combinations(others, size)
        )
        assert shares.for_server(count) ** 2 == pytest.approx(left), count


def test_without_secure_aggregation_colluding_clients_add_nothing_to_what_the_server_sees():
    assert NoiseShares(2.0, 10, None, 0.5).for_server() == NoiseShares(2.0, 10).for_server()


@pytest.mark.parametrize("honest", [0.0, -0.1, 1.1])
def test_a_share_of_honest_clients_that_is_none_is_refused(honest):
    with pytest.raises(ValueError, match="honest must be in"):
        NoiseShares(2.0, 10, None, honest)
