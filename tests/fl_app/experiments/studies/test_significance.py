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
    holm,
    sign_flip_p,
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


def test_a_mean_without_spread_is_certain_and_one_difference_is_none():
    assert (student_p([0.5, 0.5]), student_p([-0.5, -0.5])) == (0.0, 1.0)
    with pytest.raises(ValueError, match="at least two"):
        student_p([0.5])


def test_holm_by_hand():
    # sorted 0.01, 0.02, 0.03, 0.04: times 4, 3, 2, 1, none below the one before
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_never_lowers_keeps_the_order_and_is_at_most_bonferroni(probabilities):
    adjusted = holm(probabilities)
    for p, after in zip(probabilities, adjusted, strict=True):
        assert p <= after <= min(1.0, len(probabilities) * p) + 1e-12
    ranked = sorted(zip(probabilities, adjusted, strict=True))
    assert [after for _, after in ranked] == sorted(adjusted)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_as_the_step_down_rule_does(probabilities, level):
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    rejected = set()
    for rank, number in enumerate(order):
        if (len(order) - rank) * probabilities[number] > level:
            break
        rejected.add(number)
    assert {n for n, after in enumerate(holm(probabilities)) if after <= level} == rejected
