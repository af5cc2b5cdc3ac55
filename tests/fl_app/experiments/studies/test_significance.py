"""Every probability against one that is worked out in another way."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_app.experiments.studies import significance
from fl_app.experiments.studies.significance import (
    EXACT_UNITS,
    sign_flip_interval,
    sign_flip_p,
    sign_interval,
    sign_p,
    student_interval,
    student_p,
)

# multiples of 1/8 add up without rounding, so that ties are ties
eighths = st.integers(-40, 40).map(lambda number: number / 8)


def by_all_signs(differences):
    sizes = [abs(value) for value in differences]
    sums = [
        sum(s * size for s, size in zip(signs, sizes, strict=True))
        for signs in itertools.product((-1, 1), repeat=len(sizes))
    ]
    return sum(total >= sum(differences) for total in sums) / len(sums)


@settings(max_examples=60, deadline=None)
@given(st.lists(eighths, min_size=1, max_size=12))
def test_the_sign_flip_test_counts_what_all_signs_give(differences):
    assert sign_flip_p(differences) == by_all_signs(differences)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-3000, 3000).map(lambda value: value / 1000.0), min_size=2, max_size=10))
def test_it_agrees_with_scipy_on_differences_of_any_size(differences):
    theirs = stats.permutation_test(
        (np.array(differences),),
        lambda x, axis: np.sum(x, axis=axis),
        permutation_type="samples",
        alternative="greater",
        n_resamples=np.inf,
    )
    assert sign_flip_p(differences) == pytest.approx(theirs.pvalue, abs=1e-9)


@pytest.mark.parametrize("units", [20, 33, EXACT_UNITS])
def test_differences_that_all_point_one_way_have_one_choice_of_signs(units):
    assert sign_flip_p([0.1 * (i + 1) for i in range(units)]) == 2.0**-units
    assert sign_flip_p([-0.1 * (i + 1) for i in range(units)]) == 1.0


def test_of_more_units_drawn_signs_are_near_the_normal_law_and_repeat():
    generator = np.random.default_rng(3)
    differences = list(generator.normal(0.15, 1, size=EXACT_UNITS + 60))
    p = sign_flip_p(differences)
    normal = stats.norm.sf(sum(differences) / math.sqrt(sum(value**2 for value in differences)))
    assert p == pytest.approx(normal, abs=0.01)
    assert p == sign_flip_p(differences)
    assert sign_flip_p([1.0] * (EXACT_UNITS + 1)) == pytest.approx(1 / (1 + significance._DRAWS))


@pytest.mark.parametrize("wrong", [[], [1.0, math.nan], [math.inf]])
def test_no_differences_or_infinite_ones_are_refused(wrong):
    with pytest.raises(ValueError, match="finite differences"):
        sign_flip_p(wrong)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-2, 2, allow_subnormal=False), min_size=2, max_size=9), st.floats(-1, 1))
def test_students_test_and_interval_are_scipys(differences, above):
    if np.std(differences) < 1e-6:
        return  # scipy divides by it
    theirs = stats.ttest_1samp(differences, above, alternative="greater")
    assert student_p(differences, above) == pytest.approx(theirs.pvalue, abs=1e-9)
    interval = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert student_interval(differences) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("values", [[0.5, 0.5, 0.5], [0.8 - 0.7, 0.9 - 0.8, 0.7 - 0.6]])
def test_identical_differences_are_as_good_as_their_signs(values):
    assert (student_p(values), student_p([-value for value in values])) == (1 / 8, 1.0)
    assert student_interval(values) is None


def test_one_difference_is_no_sample():
    with pytest.raises(ValueError, match="at least two"):
        student_p([0.5])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-64, 64), min_size=6, max_size=9, unique=True))
def test_the_interval_of_sign_flips_is_what_the_test_accepts(numbers):
    differences = [number / 8 for number in numbers]
    low, high = sign_flip_interval(differences)
    for centre, accepted in (
        (low - 1e-6, False),
        (low + 1e-6, True),
        (high - 1e-6, True),
        (high + 1e-6, False),
    ):
        tails = [sign_flip_p([sign * (value - centre) for value in differences]) for sign in (1, -1)]
        assert (min(tails) > 0.025) == accepted


def test_too_few_differences_have_no_interval():
    assert sign_flip_interval([0.1, 0.2, 0.3, 0.4, 0.5]) is None
    assert sign_interval([0.1, 0.2, 0.3, 0.4, 0.5]) is None


def test_of_many_differences_the_interval_is_near_students():
    differences = list(np.random.default_rng(5).normal(0.3, 1, size=60))
    assert sign_flip_interval(differences) == pytest.approx(student_interval(differences), abs=0.05)


@given(st.lists(st.integers(-20, 20), min_size=6, max_size=30), st.integers(-20, 20))
def test_the_sign_test_is_scipys_binomial_test(values, above):
    hits = sum(value > above for value in values)
    theirs = stats.binomtest(hits, len(values), 0.5, alternative="greater").pvalue
    assert sign_p(values, above) == pytest.approx(theirs)


@pytest.mark.parametrize(("n", "rank"), [(6, 0), (8, 0), (9, 1), (20, 5), (40, 13)])
def test_the_interval_of_a_median_has_the_ranks_of_the_tables(n, rank):
    assert sign_interval(list(range(n))) == (rank, n - 1 - rank)
