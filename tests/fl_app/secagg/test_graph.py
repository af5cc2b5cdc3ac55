"""The sparse graph: who are neighbours, how many suffice, and that sums stay exact."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom
from secure_rounds import UNSIGNED, Cohort, make_terms, plain_sum, play

from fl_app.secagg import (
    Assumptions,
    Neighbourhood,
    ProtocolError,
    RoundFailed,
    SecureRound,
    Terms,
    fit_neighbourhood,
    offer,
    share,
    unmask,
)
from fl_app.secagg.graph import USUAL, Graph, is_private
from fl_app.secagg.keys import Agreement, make_private_key
from fl_app.secagg.messages import Keyring, Request, Shares
from fl_app.secagg.stages import read_stage

TRUSTING = Assumptions(colluding=0.0, dropping=0.0, smallest=2)


# ---- the numbers


@pytest.mark.parametrize("clients", [200, 345, 1000, 10_000])
def test_the_chances_are_below_their_bounds_and_no_fewer_neighbours_have_that(clients):
    near = fit_neighbourhood(clients)
    others, marked, half = near.ring - 1, clients // 10, near.degree // 2
    assert near.ring == clients - marked

    def chances(half, quorum):
        # a side with as many colluding clients as are alive at least; and a client that too few are left of
        private = hypergeom.sf(quorum - half - 2, others, marked, half)
        fails = hypergeom.sf(2 * half - quorum, others, marked, 2 * half)
        return 2 * clients * private <= 2.0**-70, clients * fails <= 2.0**-20

    assert chances(half, near.quorum) == (True, True)
    fewer = half - 1
    assert (True, True) not in [chances(fewer, quorum) for quorum in range(fewer + 2, 2 * fewer + 2)]


def test_small_cohorts_have_the_complete_graph_and_large_ones_grow_by_the_logarithm():
    assert [fit_neighbourhood(clients) for clients in (2, 50, 199)] == [None] * 3
    degrees = [fit_neighbourhood(clients).degree for clients in (1000, 3000, 9000)]
    assert degrees[2] - degrees[1] < degrees[1] - degrees[0] < 50


def test_no_colluding_minority_has_both_secrets_or_a_closed_group():
    for clients in (200, 1000):
        near = fit_neighbourhood(clients)
        most = 2 * (near.surplus - 1)  # colluding neighbours of one client, at worst
        answers = (near.degree + 1 - most) + 2 * most  # honest ones answer once
        assert answers < 2 * near.quorum
        assert near.surplus >= 1


@pytest.mark.parametrize(
    "near",
    [
        lambda near: replace(near, quorum=near.quorum - 1),
        lambda near: replace(near, degree=near.degree - 2, quorum=near.quorum - 2),
        lambda near: replace(near, ring=near.ring * 2 // 3),
    ],
)
def test_a_client_refuses_a_graph_that_is_weaker_than_its_assumptions(near):
    strong = fit_neighbourhood(1000)
    grid = make_terms(1000).fixed_point
    for chosen, accepted in ((strong, True), (near(strong), False), (None, True)):
        assert is_private(chosen, 1000) == accepted
        terms = replace(make_terms(1000, fixed_point=grid), neighbourhood=chosen)
        if accepted:
            offer(terms.to_bytes(), client=1)
        else:
            with pytest.raises(ProtocolError, match="client 1: expected a graph that withstands"):
                offer(terms.to_bytes(), client=1)


def test_a_client_refuses_a_sparse_graph_in_a_small_cohort():
    terms = replace(make_terms(100), neighbourhood=Neighbourhood(90, 89, 95))
    with pytest.raises(ProtocolError, match="client 1: expected a graph that withstands"):
        offer(terms.to_bytes(), client=1)


@pytest.mark.parametrize("numbers", [(0, 2, 9), (3, 4, 9), (4, 3, 9), (4, 6, 9), (4, 4, 5)])
def test_numbers_that_would_cut_clients_off_are_refused(numbers):
    with pytest.raises(ValueError, match="Neighbourhood"):
        Neighbourhood(*numbers)


def test_terms_with_a_graph_survive_their_bytes():
    terms = replace(make_terms(12), neighbourhood=Neighbourhood(4, 4, 11))
    assert Terms.from_bytes(terms.to_bytes()) == terms
    assert terms.digest != make_terms(12).digest
    with pytest.raises(ValueError, match="a ring of 13 needs more than 12 clients"):
        replace(terms, neighbourhood=Neighbourhood(4, 4, 13))


# ---- the circles


@settings(max_examples=20, deadline=None)
@given(st.sets(st.integers(0, 2**32 - 2), min_size=8, max_size=30), st.integers(1, 3), st.binary(max_size=8))
def test_neighbours_are_mutual_and_as_many_as_agreed(clients, half, seed):
    graph = Graph(sorted(clients), seed, Neighbourhood(2 * half, 2 * half + 1, 2 * half + 2))
    for client in clients:
        circle = graph.circle(client)
        assert len(circle) == 2 * half + 1
        assert list(circle) == sorted(set(circle))
        assert all(client in graph.circle(other) for other in circle)


def test_neighbours_are_a_random_set():
    near = Neighbourhood(6, 6, 20)
    counts = np.zeros(20)
    for seed in range(4000):
        counts[list(Graph(range(20), seed.to_bytes(4, "little"), near).circle(7))] += 1
    expected = 4000 * 6 / 19
    others = np.delete(counts, 7)
    assert counts[7] == 4000
    assert np.abs(others - expected).max() < 5 * math.sqrt(expected)


def test_one_new_key_makes_another_graph():
    """No client knows its neighbours before the last one has drawn its keys."""
    terms = replace(make_terms(30), neighbourhood=Neighbourhood(6, 6, 20))
    steps = {client: offer(terms.to_bytes(), client=client, assumed=TRUSTING) for client in range(30)}
    server = SecureRound(terms)
    server.invite()
    ring = Keyring.from_bytes(
        server.collect_adverts({client: step.reply for client, step in steps.items()})[0], terms
    )
    other = replace(ring.adverts[29], masking_key=Agreement(make_private_key()).public)
    changed = Keyring((*ring.adverts[:29], other))
    circles = [
        tuple(read_stage(share(steps[0].state, shown.to_bytes(terms)).state).peers)
        for shown in (ring, ring, changed)
    ]
    assert circles[0] == circles[1] != circles[2]


# ---- the sum


class Trusting(Cohort):
    """Clients that accept a sparse graph of any size."""

    @property
    def _calls(self):
        return super()._calls | {
            "offer": lambda i, m: offer(m, client=i, previous=self.states.get(i), assumed=TRUSTING)
        }


@st.composite
def sparse_rounds(draw):
    count = draw(st.integers(6, 12))
    clients = sorted(draw(st.sets(st.integers(0, 2**32 - 2), min_size=count, max_size=count)))
    degree = 2 * draw(st.integers(1, (count - 2) // 2))
    quorum = draw(st.integers(degree // 2 + 2, degree + 1))
    near = Neighbourhood(degree, quorum, draw(st.integers(degree + 2, count)))
    terms = replace(make_terms(clients, size=draw(st.integers(1, 9))), neighbourhood=near)
    gone = draw(st.permutations(clients))[: draw(st.integers(0, count - terms.threshold + 1))]
    return terms, {client: draw(st.sampled_from(UNSIGNED)) for client in gone}


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sparse_rounds(), st.integers(0, 2**32))
def test_the_sum_is_that_of_the_survivors_or_there_is_none(round, seed):
    terms, drops = round
    random = np.random.default_rng(seed)
    cohort = Trusting({client: random.normal(0, 1.5, terms.size) for client in terms.participants})
    server = SecureRound(terms)
    if not drops:
        total = play(terms, cohort, server=server)
    else:
        try:
            total = play(terms, cohort, drops=drops, server=server)
        except (RoundFailed, ProtocolError):  # too few are left, among all or of some client's neighbours
            return
    survivors = [client for client in terms.participants if drops.get(client, "unmask") == "unmask"]
    assert list(total.survivors) == survivors
    assert total.words.tolist() == plain_sum(terms, cohort.vectors, survivors)


def test_dropouts_at_every_exchange_leave_an_exact_sum():
    terms = replace(make_terms(40, size=50), neighbourhood=Neighbourhood(20, 14, 30))
    random = np.random.default_rng(1)
    cohort = Trusting({client: random.normal(0, 1.5, 50) for client in range(40)})
    drops = {4: "offer", 5: "share", 6: "mask", 17: "mask", 30: "unmask"}
    total = play(terms, cohort, drops=drops)
    survivors = [client for client in range(40) if client not in (4, 5, 6, 17)]
    assert list(total.survivors) == survivors
    assert total.words.tolist() == plain_sum(terms, cohort.vectors, survivors)


def test_an_envelope_goes_to_neighbours_only():
    terms = replace(make_terms(40), neighbourhood=Neighbourhood(8, 7, 30))
    cohort = Trusting({client: np.zeros(3) for client in range(40)})
    replies = cohort.answer("share", play(terms, cohort, until="share"))
    for client, reply in replies.items():
        assert len(Shares.from_bytes(reply, terms, client=client, holders=9).envelopes) == 9


# ---- an active server


@pytest.fixture
def holding():
    terms = replace(make_terms(30), neighbourhood=Neighbourhood(8, 7, 25))
    cohort = Trusting({client: np.zeros(3) for client in range(30)})
    play(terms, cohort, until="unmask")
    return terms, cohort


def test_a_server_cannot_say_that_a_clients_neighbours_are_gone(holding):
    """Without its neighbours the masks of a client would be known: two of eight may be missing."""
    terms, cohort = holding
    near = [other for other in read_stage(cohort.states[0]).shares if other != 0]
    for missing, refused in ((2, False), (3, True)):
        survivors = tuple(client for client in range(30) if client not in near[:missing])
        request = Request(survivors).to_bytes(terms)
        if refused:
            with pytest.raises(
                ProtocolError, match=r"client 0: survivor list: .* 7 of its neighbours, got 6"
            ):
                unmask(cohort.states[0], request)
        else:
            unmask(cohort.states[0], request)


def test_a_keyring_too_small_for_the_graph_is_refused():
    terms = replace(make_terms(30), neighbourhood=Neighbourhood(8, 7, 25))
    cohort = Trusting({client: np.zeros(3) for client in range(30)})
    ring = Keyring.from_bytes(play(terms, cohort, until="share")[0], terms)
    with pytest.raises(ProtocolError, match="client 0: keyring: expected at least 25 clients, got 24"):
        share(cohort.states[0], Keyring(ring.adverts[:24]).to_bytes(terms))
    assert USUAL.smallest > 30
