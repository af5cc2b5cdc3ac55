"""Claims by hand: what is paired, what is tested, and which verdicts come out."""

import pytest
from scipy import stats
from study_cells import attack, failed, finished, one_each, planned, study

from fl_app.experiments.studies.claims import judge
from fl_app.experiments.studies.protocol import Margin, PrimaryClaim, Protocol

SSIM = {"part": "ig", "metric": "ssim"}
ACCURACY = {"part": "accuracy", "metric": "accuracy"}
LESS = {"name": "a", "text": "less", "less": {**SSIM, "defense": "dgp"}, "than": {**SSIM, "defense": "none"}}
OF_SEEDS = {
    "name": "a",
    "text": "",
    "of": {**ACCURACY, "defense": "dgp"},
    "from": {**ACCURACY, "defense": "none"},
}


def protocol(**more):
    return Protocol(paper="dgp", written="", **more)


def verdicts(cells, *claims, by=None):
    return judge(study(claims=list(claims)), cells, by or protocol())


def images(none, dgp, **more):
    return [
        finished(planned(defense="none"), attacks=one_each(none, **more)),
        finished(planned(defense="dgp"), attacks=one_each(dgp, **more)),
    ]


def seeds(**accuracies):
    return [
        finished(planned("accuracy", defense=defense, seed=seed), accuracy=accuracy)
        for defense, values in accuracies.items()
        for seed, accuracy in enumerate(values)
    ]


def test_twenty_updates_that_all_agree_hold():
    (verdict,) = verdicts(images([0.5] * 20, [0.2] * 20), LESS)
    assert (verdict.verdict, verdict.n, verdict.unit, verdict.p) == ("holds", 20, "update", 2.0**-19)
    assert (verdict.left, verdict.right, verdict.p_family) == (pytest.approx(0.2), 0.5, verdict.p)
    assert (verdict.test, verdict.interval) == ("sign flips", pytest.approx((-0.3, -0.3)))


def test_a_claim_is_refuted_by_the_test_by_which_it_would_hold():
    (holds,) = verdicts(images([0.5] * 20, [0.2] * 20), LESS)
    (refuted,) = verdicts(images([0.2] * 20, [0.5] * 20), LESS)
    assert (refuted.verdict, refuted.p, refuted.test) == ("refuted", holds.p, holds.test)
    assert refuted.interval == pytest.approx((0.3, 0.3))


@pytest.mark.parametrize("up", [11, 9])
def test_chance_decides_neither_way(up):
    # eleven of twenty equal steps to one side: P(at least 11 of 20 heads) = 0.412
    none = [0.6] * up + [0.4] * (20 - up)
    (verdict,) = verdicts(images(none, [0.5] * 20), LESS)
    assert verdict.verdict == "not decided"
    assert verdict.p == pytest.approx(2 * stats.binom.sf(10, 20, 0.5))


def test_sides_that_differ_by_less_than_matters_are_equivalent():
    none = [0.5 + 0.002 * (-1) ** i for i in range(30)]
    margins = {"ssim": Margin(margin=0.25, reason="")}
    (verdict,) = verdicts(images(none, [0.5] * 30), LESS, by=protocol(margins=margins))
    assert verdict.verdict == "equivalent"
    assert verdict.interval.low < 0 < verdict.interval.high
    # a margin that is not in the protocol calls nothing equivalent
    (verdict,) = verdicts(images(none, [0.5] * 30), LESS)
    assert verdict.verdict == "not decided"


def test_five_updates_are_too_few():
    (verdict,) = verdicts(images([0.5] * 5, [0.2] * 5), LESS)
    assert (verdict.verdict, verdict.n, verdict.p) == ("not decided", 5, None)


def test_images_of_one_update_are_one_unit():
    cells = [
        finished(planned(defense=d), attacks=[attack([v, v + 0.1, v + 0.2], client=c) for c in range(7)])
        for d, v in (("none", 0.5), ("dgp", 0.2))
    ]
    (verdict,) = verdicts(cells, LESS)
    assert (verdict.n, verdict.p) == (7, 2.0**-6)
    assert (verdict.left, verdict.right) == (pytest.approx(0.3), pytest.approx(0.6))


def test_the_family_is_that_of_the_protocol_whatever_else_was_run():
    # fifteen of twenty: two-sided p = 0.0414 is enough for one test, not for three
    cells = images([0.6] * 15 + [0.4] * 5, [0.5] * 20)
    (alone,) = verdicts(cells, LESS)
    assert (alone.verdict, round(alone.p, 4), alone.role) == ("holds", 0.0414, "exploratory")
    together = verdicts(cells, LESS, LESS | {"name": "b"}, LESS | {"name": "c"})
    assert [verdict.verdict for verdict in together] == ["not decided"] * 3
    assert together[0].p_family == pytest.approx(3 * alone.p)
    entry = PrimaryClaim(
        claim="own/a", quote="", place="", unit="update", n=None, test="sign flips", attackers=""
    )
    fixed = protocol(primary=[entry], secondary=["own/b", "other/x"])
    first, second, third = verdicts(cells, LESS, LESS | {"name": "b"}, LESS | {"name": "c"}, by=fixed)
    assert [v.role for v in (first, second, third)] == ["primary", "secondary", "exploratory"]
    assert [v.p_family / alone.p for v in (first, second, third)] == pytest.approx([1, 2, 1])


def test_seeds_add_units_and_sides_are_paired_within_them():
    values = {("none", 0): 0.5, ("none", 1): 0.9, ("dgp", 0): 0.4, ("dgp", 1): 0.2}
    cells = [finished(planned(defense=d, seed=s), attacks=one_each([v] * 20)) for (d, s), v in values.items()]
    (verdict,) = verdicts(cells, LESS)
    assert (verdict.n, verdict.left, verdict.right) == (40, pytest.approx(0.3), pytest.approx(0.7))
    # without the second seed on one side, the other's does not count either
    cells[3] = failed(planned(defense="dgp", seed=1), "failed: out of memory")
    (verdict,) = verdicts(cells, LESS)
    assert (verdict.n, verdict.left, verdict.right) == (20, pytest.approx(0.4), pytest.approx(0.5))
    assert "seed 1 client 0 round 1 image 0" in verdict.words
    assert "and 17 more" in verdict.words


def test_what_was_not_run_or_gave_up_is_not_measured():
    none, dgp = images([0.5] * 20, [0.2] * 20)
    (verdict,) = verdicts([none, failed(dgp.planned, "failed after 3 s: out of memory")], LESS)
    assert verdict.words == "not measured: failed after 3 s: out of memory"
    gave_up = attack([], notes=["the attack gave up: the update is pruned"])
    (verdict,) = verdicts([none, finished(dgp.planned, attacks=[gave_up])], LESS)
    assert verdict.words == "not measured: the attack gave up: the update is pruned"


def test_seeds_are_judged_by_students_paired_test():
    none, dgp = [0.80, 0.82, 0.81], [0.79, 0.80, 0.80]
    cells = seeds(none=none, dgp=dgp)
    (close,) = verdicts(cells, OF_SEEDS | {"loses_at_most": 0.03})
    expected = stats.ttest_1samp([-0.01, -0.02, -0.01], -0.03).pvalue
    assert (close.verdict, close.p, close.unit) == ("holds", pytest.approx(expected), "seed")
    low, high = stats.ttest_rel(dgp, none).confidence_interval(0.95)
    assert close.interval == pytest.approx((low, high))
    assert verdicts(cells, OF_SEEDS | {"loses_at_most": 0.01})[0].verdict == "not decided"
    assert verdicts(seeds(none=none, dgp=[0.1, 0.12, 0.12]), OF_SEEDS | {"loses_at_most": 0.01})[
        0
    ].verdict == ("refuted")


def test_three_seeds_with_identical_values_decide_nothing():
    (verdict,) = verdicts(seeds(none=[0.9] * 3, dgp=[0.1] * 3), OF_SEEDS | {"loses_at_most": 0.01})
    assert (verdict.verdict, verdict.p, verdict.interval) == ("not decided", 0.25, None)


def test_within_is_two_tests_and_losing_is_one():
    gain = seeds(none=[0.5, 0.51, 0.52], dgp=[0.6, 0.612, 0.621])
    assert verdicts(gain, OF_SEEDS | {"within": 0.02})[0].verdict == "refuted"
    assert verdicts(gain, OF_SEEDS | {"loses_at_most": 0.02})[0].verdict == "holds"
    assert verdicts(gain, OF_SEEDS | {"within": 0.2})[0].verdict == "holds"


def test_two_seeds_are_too_few():
    claim = {"name": "a", "text": "", "less": {**ACCURACY, "defense": "dgp"}}
    (verdict,) = verdicts(
        seeds(none=[0.9, 0.9], dgp=[0.1, 0.1]), claim | {"than": {**ACCURACY, "defense": "none"}}
    )
    assert (verdict.verdict, verdict.p, verdict.n) == ("not decided", None, 2)


def test_a_bound_is_tested_by_betting_on_scores():
    cells = images([0.95] * 30, [0.2] * 30)
    near = {"name": "a", "text": "", "at_least": 0.9, "of": {**SSIM, "defense": "none"}}
    far = {"name": "b", "text": "", "at_least": 0.5, "of": {**SSIM, "defense": "none"}}
    wrong = {"name": "c", "text": "", "at_most": 0.1, "of": {**SSIM, "defense": "dgp"}}
    found = verdicts(cells, near, far, wrong)
    assert [verdict.verdict for verdict in found] == ["not decided", "holds", "refuted"]
    assert {verdict.test for verdict in found} == {"betting"}
    assert all(v.interval.low < v.left < v.interval.high for v in found)


def test_hits_are_tested_as_a_share():
    share = {"part": "ig", "metric": "labels.exact", "defense": "none"}
    claim = {"name": "a", "text": "", "at_least": 0.9, "of": share}
    attacks = [attack([0.5], client=c, labels={"exact": True}) for c in range(20)]
    (verdict,) = verdicts([finished(planned(defense="none"), attacks=attacks)], claim)
    assert (verdict.test, verdict.verdict) == ("exact binomial", "not decided")
    assert verdict.p == pytest.approx(2 * 0.9**20)
    assert verdict.interval == pytest.approx((0.025 ** (1 / 20), 1.0))


def test_values_without_bounds_are_tested_by_their_median():
    claim = {
        "name": "a",
        "text": "",
        "at_least": 20,
        "of": {"part": "ig", "metric": "psnr", "defense": "none"},
    }
    attacks = [attack([0.5], client=c, psnr=[21.0 + c]) for c in range(12)]
    (verdict,) = verdicts([finished(planned(defense="none"), attacks=attacks)], claim)
    assert (verdict.test, verdict.verdict, verdict.p) == ("sign test", "holds", 2.0**-11)


def test_exact_comparisons_have_no_test():
    cells = images([0.5, 0.9], [0.2, 0.3])
    most = {"name": "a", "text": "", "at_most": 0.3, "of": {**SSIM, "defense": "dgp", "take": "max"}}
    (verdict,) = verdicts(cells, most | {"exact": True})
    assert (verdict.verdict, verdict.left, verdict.p, verdict.test) == ("holds", 0.3, None, None)
    bytes_sent = {"part": "accuracy", "metric": "uplink_bytes"}
    counted = [
        finished(planned("accuracy", defense=d, seed=0), uplink_bytes=v) for d, v in (("none", 9), ("dgp", 3))
    ]
    less = {"less": {**bytes_sent, "defense": "dgp"}, "than": {**bytes_sent, "defense": "none"}}
    more = {"more": {**bytes_sent, "defense": "dgp"}, "than": {**bytes_sent, "defense": "none"}}
    found = verdicts(counted, {"name": "a", "text": "", **less}, {"name": "b", "text": "", **more})
    assert [verdict.verdict for verdict in found] == ["holds", "refuted"]


def hashed(values, seeds, *, samples, model="m"):
    """Return the cells of two defenses at several seeds, whose updates have these hashes."""
    return [
        finished(
            planned(defense=defense, seed=seed),
            attacks=[
                attack([value], client=client, samples=[samples(defense, seed, client)], model=model)
                for client, value in enumerate(side)
            ],
        )
        for defense, side in values.items()
        for seed in range(seeds)
    ]


def test_the_same_update_at_several_seeds_is_one_unit():
    values = {"none": [0.5] * 10, "dgp": [0.2] * 10}
    (repeated,) = verdicts(hashed(values, 3, samples=lambda _, seed, client: f"image {client}"), LESS)
    (several,) = verdicts(hashed(values, 3, samples=lambda _, seed, client: f"image {seed} {client}"), LESS)
    assert (repeated.n, several.n) == (10, 30)
    assert (repeated.left, several.left) == pytest.approx((0.2, 0.2))


def test_sides_with_other_samples_are_named():
    values = {"none": [0.5] * 10, "dgp": [0.2] * 10}
    (other,) = verdicts(hashed(values, 1, samples=lambda defense, _, client: f"{defense} {client}"), LESS)
    (same,) = verdicts(hashed(values, 1, samples=lambda _, __, client: f"image {client}"), LESS)
    assert "10 of 10 samples differ" in other.words
    assert "differ between" not in same.words
