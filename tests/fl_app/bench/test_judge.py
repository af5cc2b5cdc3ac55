"""Verdicts of the criterion: what decides for a fall, what for a hold, and what stays open."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from fl_app.bench.card import Accuracy, Bytes, Card, Condition
from fl_app.bench.criterion import attackers, criterion, criterion_hash
from fl_app.bench.effort import effort_of
from fl_app.bench.judge import (
    attacked,
    interval,
    judge,
    judge_accuracy,
    judge_bytes,
    judge_condition,
)

RULE = criterion()
FULL = {"images": 100, "steps": 1000, "restarts": 3}


def condition(*scores, grey=0.1, **sizes):
    found = [attacked(f"a{i}", "all", [row], [row], [], RULE) for i, row in enumerate(scores)]
    return Condition(
        model="lenet", images_of="cifar10", view="one", grey=grey, attacks=found, **(FULL | sizes)
    )


def verdict(*scores, expected=(), **more):
    return judge_condition(condition(*scores, **more), RULE, expected=expected).verdict


def low(mean, spread=0.01, count=100):
    return [mean + spread * (-1) ** i for i in range(count)]


def test_the_criterion_is_the_one_that_was_fixed_first():
    # another criterion is another file: this hash never changes
    assert criterion_hash() == "493feb632cc629a4a9f3188a8c7de1dc99b68c05591944a43e13ddbcce9327e7"
    assert (RULE.leak.above_grey, RULE.leak.best_image) == (0.10, 0.35)
    assert (RULE.leak.images, RULE.leak.steps, RULE.leak.restarts) == (100, 1000, 3)
    assert len(RULE.leak.models) == 3
    assert [view.name for view in RULE.leak.views] == ["one", "ten_fixed", "ten_stream"]
    assert (RULE.accuracy.rounds, len(RULE.accuracy.seeds), RULE.accuracy.least_points) == (400, 5, -1.0)


def test_the_full_size_is_that_of_the_criterion_and_the_small_one_is_not():
    full, small = effort_of("full", RULE), effort_of("small", RULE)
    assert (full.images, full.steps, full.restarts) == (100, 1000, 3)
    assert (full.models, full.images_of, full.views) == (
        RULE.leak.models,
        RULE.leak.images_of,
        RULE.leak.views,
    )
    assert (full.accuracy_rounds, full.accuracy_seeds) == (400, RULE.accuracy.seeds)
    assert small.images < 100
    assert small.seed == full.seed != effort_of("small", RULE, tuning=True).seed
    with pytest.raises(ValueError, match="size must be one of small, full, got 'huge'"):
        effort_of("huge", RULE)


def test_every_view_has_attackers_and_each_has_public_photographs():
    for view in RULE.leak.views:
        assert any("attack.known_images=held_out" in one.overrides for one in attackers(view.name))


@given(st.lists(st.floats(0, 1), min_size=3, max_size=30).filter(lambda v: statistics.pstdev(v) > 1e-6))
def test_the_interval_is_that_of_students_test(values):
    found = interval(values, 0.95)
    expected = ttest_1samp(values, 0).confidence_interval(0.95)
    assert found == pytest.approx((expected.low, expected.high))
    one_sided = ttest_1samp(values, 0, alternative="greater").confidence_interval(0.95)
    assert interval(values, 0.95, sides=1)[0] == pytest.approx(one_sided.low)


def test_one_value_bounds_nothing():
    assert interval([0.1], 0.95) == (-math.inf, math.inf)


def test_low_scores_in_full_size_hold():
    assert verdict(low(0.15)) == "holds"


@pytest.mark.parametrize("sizes", [{"images": 99}, {"steps": 999}, {"restarts": 2}])
def test_low_scores_in_a_smaller_size_only_do_not_refute(sizes):
    assert verdict(low(0.15), **sizes) == "not refuted"


def test_one_attacker_is_enough_to_fall():
    assert verdict(low(0.15), low(0.3)) == "falls"


def test_one_image_is_enough_to_fall():
    assert verdict([*low(0.15, count=99), 0.36]) == "falls"


def test_an_interval_around_the_limit_decides_nothing():
    assert verdict(low(0.2, spread=0.1)) == "not decided"


def test_a_missing_attacker_decides_nothing_unless_another_one_did():
    assert verdict(low(0.15), expected=["a0", "other"]) == "not decided"
    assert verdict(low(0.3), expected=["a0", "other"]) == "falls"


def test_images_that_are_not_of_the_criterion_do_not_make_it_hold():
    judged = judge_condition(condition(low(0.15)), RULE, expected=[], of_criterion=False)
    assert judged.verdict == "not refuted"


def test_of_a_stream_the_round_that_comes_out_best_counts():
    first, later = [0.4, 0.5], [0.1, 0.2]
    found = attacked("a", "all", [first, later], [first, later], [], RULE)
    assert (found.ssim, found.mean, found.best) == (first, 0.45, 0.5)


def test_nothing_attacked_is_not_measured():
    bare = Condition(model="lenet", images_of="cifar10", view="one")
    assert judge_condition(bare, RULE, expected=[]).verdict == "not measured"


SEEDS = range(5)


def accuracy(points, rounds=400, **more):
    without = dict.fromkeys(SEEDS, 0.4)
    return judge_accuracy(
        {seed: 0.4 + p / 100 for seed, p in zip(SEEDS, points, strict=False)}, without, rounds, RULE, **more
    )


def test_accuracy_holds_only_with_all_seeds_and_rounds():
    close = [0.1, -0.1, 0.2, 0.0, -0.2]
    assert accuracy(close).verdict == "holds"
    assert accuracy(close, rounds=399).verdict == "not refuted"
    assert accuracy(close[:4]).verdict == "not refuted"
    assert accuracy(close, of_criterion=False).verdict == "not refuted"


def test_accuracy_falls_if_its_whole_interval_is_below_and_else_stays_open():
    assert accuracy([-5.0, -5.1, -4.9, -5.0, -5.2]).verdict == "falls"
    assert accuracy([-3.0, 3.0, -2.0, 2.0, 0.0]).verdict == "not decided"
    assert accuracy([-5.0]).verdict == "not decided"  # one seed bounds nothing
    assert accuracy([]).verdict == "not measured"


def test_accuracy_against_a_test_of_its_own():
    points = [0.4, -0.3, 0.1, -0.6, 0.2]
    found = accuracy(points)
    expected = ttest_1samp(points, 0, alternative="greater").confidence_interval(0.95)
    assert found.low == pytest.approx(expected.low)
    assert found.points == pytest.approx(statistics.fmean(points))


def test_bytes_hold_up_to_the_limit():
    assert judge_bytes(100.0, 5.0, 100.0, None).verdict == "holds"
    assert judge_bytes(100.5, 5.0, 100.0, None).verdict == "falls"
    assert judge_bytes(100.0, 5.0, None, None).verdict == "not measured"


def card(**more):
    good = judge_condition(condition(low(0.15)), RULE, expected=[])
    fields = {
        "defense": "d",
        "source": "d",
        "overrides": [],
        "criterion_version": 1,
        "criterion_hash": criterion_hash(),
        "size": "full",
        "seed": 1,
        "verdict": "not measured",
        "why": "",
        "conditions": [good],
        "accuracy": Accuracy(verdict="holds"),
        "bytes": Bytes(verdict="holds"),
    }
    return Card(**(fields | more))


def test_a_card_holds_only_if_every_part_does_and_nothing_is_missing():
    assert judge(card())[0] == "holds"
    assert judge(card(not_measured=["model x"]))[0] == "not refuted"
    assert judge(card(tuning=True))[0] == "not measured"
    assert judge(card(accuracy=Accuracy(verdict="not decided")))[0] == "not decided"
    assert judge(card(accuracy=Accuracy(verdict="not measured")))[0] == "not refuted"


def test_one_part_that_falls_decides():
    fallen = judge_condition(condition(low(0.3)), RULE, expected=[])
    assert judge(card(conditions=[fallen], accuracy=Accuracy(verdict="not decided")))[0] == "falls"
    assert judge(card(bytes=Bytes(verdict="falls")))[0] == "falls"
    assert judge(card(accuracy=Accuracy(verdict="falls", why="-5")))[1] == "accuracy: -5"
