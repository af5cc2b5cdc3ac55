"""Rates of membership tests: known truths, exact intervals, and honest thresholds."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.metrics import roc_auc_score

from attacks.membership.curve import (
    area,
    area_interval,
    clopper_pearson,
    halves,
    measure,
    measure_statistic,
    roc,
    threshold_at,
)


def drawn(members, strangers, shift, generator):
    scores = torch.cat(
        [torch.randn(members, generator=generator) + shift, torch.randn(strangers, generator=generator)]
    )
    return scores.double(), torch.arange(members + strangers) < members


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=30).filter(
        lambda rows: 0 < sum(inside for _, inside in rows) < len(rows)
    )
)
def test_the_area_is_that_of_another_library_with_ties(rows):
    scores, members = (torch.tensor(column) for column in zip(*rows, strict=True))
    assert area(scores.double(), members) == pytest.approx(roc_auc_score(members.numpy(), scores.numpy()))


def test_a_curve_runs_from_corner_to_corner_and_never_falls():
    points = roc(*drawn(40, 60, 1.0, torch.Generator().manual_seed(1)))
    assert points[0] == [0, 0]
    assert points[-1] == [1, 1]
    assert all(a <= c and b <= d for (a, b), (c, d) in pairwise(points))


def test_a_threshold_keeps_to_its_rate_and_needs_strangers_for_it():
    outside = torch.arange(50, dtype=torch.float64)
    assert float((outside > threshold_at(outside, 0.1)).double().mean()) == 0.1
    assert threshold_at(outside, 0.02) == 48
    assert threshold_at(outside, 0.01) is None


def test_halves_share_members_and_strangers():
    members = torch.arange(41) < 15
    choosing, reporting = halves(members, 3)
    assert not (choosing & reporting).any()
    assert (choosing | reporting).all()
    assert int(members[choosing].sum()) == 7
    assert int((~members)[choosing].sum()) == 13


def test_randomised_response_has_the_rates_that_it_was_given():
    # a record says the truth with probability 0.8: TPR 0.8 at FPR 0.2, and epsilon = ln 4
    generator = torch.Generator().manual_seed(5)
    members = torch.rand(20_000, generator=generator) < 0.5
    lies = torch.rand(20_000, generator=generator) < 0.2
    noise = 1e-3 * torch.rand(20_000, generator=generator)
    found = measure({"answer": (members ^ lies).double() + noise}, members)
    statistic = found["statistics"]["answer"]
    assert statistic["auc"] == pytest.approx(0.8, abs=0.01)
    point = statistic["points"][0]
    # below a rate of 0.2 a threshold picks among those that answered yes
    assert point["tpr"] == pytest.approx(0.4, abs=0.03)
    assert point["fpr"] == pytest.approx(0.1, abs=0.02)


def test_choice_among_empty_statistics_leaves_a_guess():
    generator = torch.Generator().manual_seed(7)
    members = torch.arange(60) < 30
    above = 0
    for _ in range(30):
        scores = {str(i): torch.randn(60, generator=generator).double() for i in range(8)}
        found = measure(scores, members, seed=1)
        best = max(one["auc"] for one in found["statistics"].values())
        assert best > 0.5
        above += found["best_auc_low"] > 0.5
    # the best of eight looks good on all records; on the half that did not choose it is a guess
    assert above <= 4


@pytest.mark.parametrize(("shift", "members", "strangers"), [(0.0, 25, 25), (1.0, 25, 40), (2.5, 15, 30)])
def test_intervals_hold_the_true_area_as_often_as_they_say(shift, members, strangers):
    generator = torch.Generator().manual_seed(11)
    true = float(norm.cdf(shift / np.sqrt(2)))
    hits = 0
    for _ in range(100):
        value = area(*drawn(members, strangers, shift, generator))
        low, high = area_interval(value, members, strangers)
        hits += low <= true <= high
    assert hits >= 90


def test_rates_at_a_chosen_threshold_hold_the_truth_as_often_as_they_say():
    generator, hits, trials = torch.Generator().manual_seed(13), 0, 0
    for seed in range(100):
        scores, members = drawn(100, 100, 1.0, generator)
        choosing, _ = halves(members, seed)
        (point,) = measure_statistic(scores, members, choosing, [0.1])["points"]
        threshold = threshold_at(scores[choosing & ~members], 0.1)
        for low, high, true in (
            (point["tpr_low"], point["tpr_high"], norm.sf(threshold - 1.0)),
            (point["fpr_low"], point["fpr_high"], norm.sf(threshold)),
        ):
            hits += low <= true <= high
            trials += 1
    assert hits / trials >= 0.93


def test_extreme_counts_have_exact_limits():
    assert clopper_pearson(0, 10) == (0.0, pytest.approx(1 - 0.025 ** (1 / 10)))
    assert clopper_pearson(10, 10) == (pytest.approx(0.025 ** (1 / 10)), 1.0)
    low, high = area_interval(1.0, 20, 20)
    assert 0.8 < low < high == 1.0
    assert area_interval(0.0, 20, 20) == (0.0, pytest.approx(1 - low))


def test_too_few_of_a_side_are_refused():
    with pytest.raises(ValueError, match="at least 2"):
        measure({"loss": torch.zeros(5)}, torch.tensor([True, True, True, True, False]))
