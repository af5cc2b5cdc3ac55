"""Tests of scores between 0 and 1 against exact ones, by hand and by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_app.experiments.studies.bounded_mean import (
    STAKES,
    betting_interval,
    betting_p,
    binomial_interval,
    binomial_p,
)

scores = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=25)
hits = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=40)


@pytest.mark.parametrize(("bound", "expected"), [(0.9, 0.9**20), (0.99, 0.99**20)])
def test_twenty_hits_of_twenty_are_weak_evidence_for_a_share_near_one(bound, expected):
    assert binomial_p([1.0] * 20, bound) == pytest.approx(expected)
    assert betting_p([1.0] * 20, bound) >= expected


@given(hits, st.floats(0.01, 0.99))
def test_the_binomial_test_and_its_interval_are_scipys(values, bound):
    theirs = stats.binomtest(int(sum(values)), len(values), bound, alternative="greater")
    assert binomial_p(values, bound) == pytest.approx(theirs.pvalue)
    two_sided = stats.binomtest(int(sum(values)), len(values)).proportion_ci(0.95, "exact")
    assert binomial_interval(values) == pytest.approx((two_sided.low, two_sided.high))


@settings(max_examples=60, deadline=None)
@given(scores, st.floats(0.05, 0.95))
def test_betting_multiplies_the_capital_of_every_stake(values, bound):
    capital = [np.prod([1 + stake * (value / bound - 1) for value in values]) for stake in STAKES]
    assert betting_p(values, bound) == pytest.approx(min(1.0, 1 / np.mean(capital)), rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(scores, st.floats(0.05, 0.9), st.floats(0.001, 0.09))
def test_a_higher_bound_is_never_easier_to_exceed(values, bound, more):
    assert betting_p(values, bound) <= betting_p(values, bound + more) + 1e-12


@settings(max_examples=40, deadline=None)
@given(scores)
def test_the_interval_is_what_betting_accepts(values):
    low, high = betting_interval(values)
    assert low <= np.mean(values) + 1e-9
    assert high >= np.mean(values) - 1e-9
    if low > 1e-6:
        assert betting_p(values, low - 1e-6) <= 0.025 < betting_p(values, min(1.0, low + 1e-6))
    if high < 1 - 1e-6:
        assert betting_p([1 - value for value in values], 1 - high - 1e-6) <= 0.025


@pytest.mark.parametrize("wrong", [[], [0.5, 1.1], [-0.1], [float("nan")]])
def test_scores_beyond_the_bounds_are_refused(wrong):
    with pytest.raises(ValueError, match="from 0 to 1"):
        betting_p(wrong, 0.5)


def test_the_binomial_test_refuses_shares():
    with pytest.raises(ValueError, match="of 0 and 1"):
        binomial_p([0.5], 0.5)
