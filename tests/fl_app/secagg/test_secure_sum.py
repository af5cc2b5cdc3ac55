import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secure_rounds import SIGNED, UNSIGNED, Cohort, make_terms, plain_sum, play

from fl_app.secagg import (
    Identity,
    QuorumError,
    SecureRound,
    check_quorum,
    create_identities,
    fit_fixed_point,
    load_identity,
    load_pinned,
    smallest_threshold,
)


@pytest.fixture(scope="module")
def identities(tmp_path_factory) -> dict[int, Identity]:
    folder = tmp_path_factory.mktemp("identities")
    create_identities(folder, range(5))
    return {client: load_identity(folder, client) for client in range(5)}


def draw_vectors(clients, size: int, seed: int = 0) -> dict[int, np.ndarray]:
    random = np.random.default_rng(seed)
    # some values lie outside of the range
    return {client: random.normal(0, 1.5, size) for client in clients}


def survivors_of(terms, drops) -> tuple[int, ...]:
    late = {"endorse", "unmask"}
    return tuple(client for client in terms.participants if drops.get(client, "unmask") in late)


def check(terms, cohort, drops) -> None:
    total = play(terms, cohort, drops=drops)
    assert total.survivors == survivors_of(terms, drops)
    assert total.words.tolist() == plain_sum(terms, cohort.vectors, total.survivors)


def patterns(clients: int, most: int, calls) -> list[dict[int, str]]:
    """Every way in which up to ``most`` clients can vanish at one of the calls."""
    return [
        dict(zip(gone, when, strict=True))
        for count in range(most + 1)
        for gone in itertools.combinations(range(clients), count)
        for when in itertools.product(calls, repeat=count)
    ]


@pytest.mark.parametrize("clients", [2, 3, 4, 5])
@pytest.mark.parametrize("signed", [False, True])
def test_the_sum_is_exact_for_every_pattern_of_dropouts(clients, signed, identities):
    terms = make_terms(clients, signed=signed)
    cases = patterns(clients, clients - terms.threshold, SIGNED if signed else UNSIGNED)
    assert len(cases) == 1 + (clients - terms.threshold) * clients * (5 if signed else 4)
    for drops in cases:
        cohort = Cohort(draw_vectors(range(clients), terms.size), identities if signed else {})
        check(terms, cohort, drops)


@st.composite
def rounds(draw):
    clients = sorted(draw(st.sets(st.integers(0, 2**32 - 2), min_size=2, max_size=8)))
    threshold = draw(st.integers(smallest_threshold(len(clients)), len(clients)))
    step = 2.0 ** draw(st.integers(-45, 0))
    terms = make_terms(clients, size=draw(st.integers(1, 40)), step=step, threshold=threshold)
    gone = draw(st.permutations(clients))[: draw(st.integers(0, len(clients) - threshold))]
    return terms, {client: draw(st.sampled_from(UNSIGNED)) for client in gone}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rounds(), st.integers(0, 2**32))
def test_the_sum_is_exact_for_random_cohorts_sizes_and_dropouts(round, seed):
    terms, drops = round
    check(terms, Cohort(draw_vectors(terms.participants, terms.size, seed)), drops)


@pytest.mark.parametrize("signed", [False, True])
def test_below_the_threshold_the_round_fails_and_says_who_is_left(signed, identities):
    for call in SIGNED if signed else UNSIGNED:
        terms = make_terms(5, signed=signed)
        cohort = Cohort(draw_vectors(range(5), terms.size), identities if signed else {})
        server = SecureRound(terms)
        with pytest.raises(QuorumError, match=r"at least 4 clients, got 3: \[0, 2, 4\]; missing: ") as failed:
            play(terms, cohort, drops={1: call, 3: call}, server=server)
        assert (failed.value.needed, failed.value.present) == (4, (0, 2, 4))
        assert failed.value.missing == (1, 3)
        assert server.unmasking_begun == (call == "unmask")
        with pytest.raises(ValueError, match="the round has failed"):
            server.collect_unmasking({})


def test_dropouts_of_different_exchanges_add_up():
    terms = make_terms(7)
    drops = {0: "offer", 2: "share", 5: "mask"}
    with pytest.raises(QuorumError, match=r"exchange of masked vectors: expected at least 5 clients, got 4"):
        play(terms, Cohort(draw_vectors(range(7), terms.size)), drops=drops)


def test_one_cohort_plays_round_after_round():
    cohort = Cohort(draw_vectors(range(4), 3))
    for round, attempt in ((1, 0), (1, 1), (2, 0), (7, 0)):
        check(make_terms(4, round=round, attempt=attempt), cohort, {round % 4: "mask"})


def test_a_larger_cohort_with_the_most_dropouts():
    terms = make_terms(24, size=1000, step=2.0**-12)
    most = 24 - terms.threshold
    drops = {3 * i: UNSIGNED[i % 4] for i in range(most)}
    check(terms, Cohort(draw_vectors(range(24), 1000)), drops)


def test_the_server_checks_signatures_when_it_knows_the_identities(identities, tmp_path):
    create_identities(tmp_path, range(4))
    terms = make_terms(4, signed=True)
    cohort = Cohort(draw_vectors(range(4), terms.size), identities)
    check(terms, cohort, {})
    strangers = SecureRound(terms, pinned=load_pinned(tmp_path))
    with pytest.raises(QuorumError, match="the signature of client 2 does not verify"):
        play(make_terms(4, signed=True), Cohort(cohort.vectors, identities), server=strangers)


def test_the_real_sum_is_within_half_a_step_per_client():
    vectors = {client: np.array([0.3, -1.9, 0.001]) for client in range(4)}
    total = play(make_terms(4, step=2.0**-10), Cohort(vectors))
    np.testing.assert_allclose(total.values(), [1.2, -7.6, 0.004], atol=4 * 2.0**-11)


def test_vectors_travel_in_as_few_bytes_as_the_cohort_needs():
    assert fit_fixed_point(bound=2.0, step=2.0**-14, clients=100).bits == 24
    terms = make_terms(4, size=1000, bound=1.0, step=2.0**-4)
    cohort = Cohort(draw_vectors(range(4), 1000))
    masked = cohort.answer("mask", play(terms, cohort, until="mask"))
    assert terms.fixed_point.bits == 8
    assert all(len(reply) == 1000 + 50 for reply in masked.values())


def test_a_round_starts_with_a_quorum_or_not_at_all():
    check_quorum([1, 2, 3], needed=3, what="round 4")
    with pytest.raises(QuorumError, match=r"round 4: expected at least 3 clients, got 2: \[1, 9\]"):
        check_quorum({9, 1}, needed=3, what="round 4")
    with pytest.raises(QuorumError, match="at least 2 clients, got 1"):
        check_quorum([5], needed=0, what="round 4")


@pytest.mark.parametrize(("clients", "threshold"), [(2, 2), (3, 3), (4, 3), (6, 5), (99, 67), (100, 67)])
def test_the_threshold_is_more_than_two_thirds(clients, threshold):
    assert smallest_threshold(clients) == threshold
    assert 3 * (threshold - 1) <= 2 * clients < 3 * threshold
