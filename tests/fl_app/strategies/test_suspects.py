"""The search for clients that spoil secure sums: few rounds are lost, and nobody else is excluded."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.strategies.suspects import SITS_OUT, Suspects


def simulate(clients, lies, rounds, *, least=3, drawn=lambda round: None):
    """Return the excluded clients and the number of bad sums; ``lies(round, cohort)`` spoils the sum."""
    search, excluded, bad = Suspects(), set(), []
    for round in range(1, rounds + 1):
        here = [c for c in (drawn(round) or clients) if c not in excluded]
        held = search.held_back(here, round=round, least=least)
        cohort = [c for c in here if c not in held]
        assert len(cohort) >= min(least, len(here))
        if lies(round, cohort):
            search.spoiled(cohort)
            bad.append(round)
        else:
            excluded = search.cleared(cohort, round=round)
    return excluded, bad


@settings(max_examples=30, deadline=None)
@given(st.integers(5, 120), st.data())
def test_one_liar_is_found_by_halving_and_excluded_the_second_time(count, data):
    liar = data.draw(st.integers(0, count - 1))
    excluded, bad = simulate(range(count), lambda round, cohort: liar in cohort, 150)
    assert excluded == {liar}
    assert len(bad) <= 4 * (math.ceil(math.log2(count)) + 4)


@settings(max_examples=15, deadline=None)
@given(st.integers(12, 40), st.data())
def test_several_liars_are_found_and_no_honest_client_is_excluded(count, data):
    liars = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=4))
    excluded, bad = simulate(range(count), lambda round, cohort: bool(liars & set(cohort)), 400)
    assert excluded == liars
    assert len(bad) <= 5 * len(liars) * (math.ceil(math.log2(count)) + 4)


@settings(max_examples=15, deadline=None)
@given(st.integers(6, 40), st.integers(0, 2**32))
def test_random_cohorts_find_the_liar_too(count, seed):
    chance = random.Random(seed)  # hypothesis' own would leave the liar out of every cohort
    liar = chance.randrange(count)
    cohorts = [sorted(chance.sample(range(count), max(4, count // 2))) for _ in range(400)]
    excluded, _ = simulate(
        range(count), lambda round, cohort: liar in cohort, 400, drawn=lambda round: cohorts[round - 1]
    )
    assert excluded == {liar}


def test_no_sum_is_missed_by_more_rounds_than_a_liar_spoils():
    """A liar in every third round costs that third at most, whomever the search accuses meanwhile."""
    _, bad = simulate(range(10), lambda round, cohort: 4 in cohort and round % 3 == 0, 300)
    assert len(bad) <= 100


def test_nobody_is_accused_without_a_good_sum_without_it():
    search = Suspects()
    search.spoiled([1, 2, 3, 4])
    for round in range(2, 40):
        held = search.held_back([1, 2, 3, 4], round=round, least=2)
        assert len(held) <= 2
        search.spoiled([client for client in (1, 2, 3, 4) if client not in held])
    assert not search.cleared([1, 2], round=40)


def test_an_accused_client_comes_back_once():
    clients, search, excluded = [1, 2, 3, 4, 5], Suspects(), set()
    rounds = []
    for round in range(1, 100):
        held = search.held_back(clients, round=round, least=2)
        here = [client for client in clients if client not in held and client not in excluded]
        rounds += [round] if 4 in here else []
        if 4 in here:
            search.spoiled(here)
        else:
            excluded = search.cleared(here, round=round)
    assert excluded == {4}
    assert max(later - sooner for sooner, later in itertools.pairwise(rounds)) > SITS_OUT


@pytest.mark.parametrize("count", [8, 10, 20, 40])
def test_a_liar_that_first_wins_trust_frames_nobody(count):
    """It begins a search, is silent until it is in the base, and spoils sums into which others are taken."""
    liar, trusted = 0, set()

    def lies(round, cohort):
        if liar not in cohort:
            return False
        everybody = len(cohort) == count
        spoils = everybody or (liar in trusted and not set(cohort) <= trusted)
        if everybody:
            trusted.clear()
        elif not spoils:
            trusted.update(cohort)
        return spoils

    excluded, bad = simulate(range(count), lies, 300)
    assert not excluded - {liar}
    assert len(bad) > 50, "it does spoil rounds, and is not found"


@pytest.mark.parametrize("count", [10, 30])
def test_liars_that_take_turns_frame_nobody(count):
    excluded, _ = simulate(range(count), lambda round, cohort: round % 2 in cohort, 400)
    assert not excluded - {0, 1}
