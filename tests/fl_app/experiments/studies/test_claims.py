"""Claims by hand: what is paired, what is tested, and which words come out."""

import pytest
from scipy import stats
from study_cells import attack, failed, finished, one_each, planned, study

from fl_app.experiments.studies.claims import judge

SSIM = {"part": "ig", "metric": "ssim"}
ACCURACY = {"part": "accuracy", "metric": "accuracy"}
LESS = {"name": "a", "text": "less", "less": {**SSIM, "defense": "dgp"}, "than": {**SSIM, "defense": "none"}}


def verdicts(cells, *claims):
    return judge(study(claims=list(claims)).claims, cells)


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


def test_twenty_images_that_all_agree_hold():
    (verdict,) = verdicts(images([0.5] * 20, [0.2] * 20), LESS)
    assert (verdict.verdict, verdict.n, verdict.unit, verdict.p) == ("holds", 20, "image", 2.0**-20)
    assert verdict.words == "holds, 0.2 < 0.5, 20 images, p = 9.54e-07; attacker: both"
    assert (verdict.left, verdict.right, verdict.p_holm) == (pytest.approx(0.2), 0.5, verdict.p)


def test_the_wrong_direction_does_not_hold_and_is_written_as_it_is():
    (verdict,) = verdicts(images([0.2] * 20, [0.5] * 20), LESS)
    assert verdict.words.startswith("does not hold, 0.5 ≥ 0.2, 20 images, p = 1")


def test_the_right_direction_by_chance_is_not_decided():
    # eleven of twenty equal steps down: P(at least 11 of 20 heads) = 0.412
    none = [0.6] * 11 + [0.4] * 9
    (verdict,) = verdicts(images(none, [0.5] * 20), LESS)
    assert verdict.verdict == "not decided"
    assert verdict.p == pytest.approx(stats.binom.sf(10, 20, 0.5))


def test_fewer_than_twenty_images_say_so():
    (verdict,) = verdicts(images([0.5] * 19, [0.2] * 19), LESS)
    assert verdict.words.startswith("not decided: too few images (19), 0.2 < 0.5, 19 images")
    assert verdict.p is None


def test_all_claims_are_judged_together():
    # fifteen of twenty: p = 0.0207 is enough for one claim, not for three
    none = [0.6] * 15 + [0.4] * 5
    cells = images(none, [0.5] * 20)
    (alone,) = verdicts(cells, LESS)
    assert (alone.verdict, round(alone.p, 4)) == ("holds", 0.0207)
    together = verdicts(cells, LESS, LESS | {"name": "b"}, LESS | {"name": "c"})
    assert [verdict.verdict for verdict in together] == ["not decided"] * 3
    assert together[0].p_holm == pytest.approx(3 * alone.p)
    assert "p = 0.0207 (0.0621 after Holm)" in together[0].words


def test_images_are_averaged_over_seeds_and_paired_within_them():
    values = {("none", 0): 0.5, ("none", 1): 0.9, ("dgp", 0): 0.4, ("dgp", 1): 0.2}
    cells = [finished(planned(defense=d, seed=s), attacks=one_each([v] * 20)) for (d, s), v in values.items()]
    (verdict,) = verdicts(cells, LESS)
    assert (verdict.n, verdict.left, verdict.right) == (20, pytest.approx(0.3), pytest.approx(0.7))
    # without the second seed on one side, the other's does not count either
    cells[3] = failed(planned(defense="dgp", seed=1), "failed: out of memory")
    (verdict,) = verdicts(cells, LESS)
    assert (verdict.left, verdict.right) == (pytest.approx(0.4), pytest.approx(0.5))
    assert "left out, as only one side has it: seed 1 client 0 round 1 image 0" in verdict.words
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
    claim = {"name": "a", "text": "", "of": {**ACCURACY, "defense": "dgp"}}
    claim["from"] = {**ACCURACY, "defense": "none"}
    (close,) = verdicts(seeds(none=none, dgp=dgp), claim | {"loses_at_most": 0.025})
    expected = stats.ttest_1samp([-0.01, -0.02, -0.01], -0.025, alternative="greater").pvalue
    assert (close.verdict, close.p, close.unit) == ("holds", pytest.approx(expected), "seed")
    low, high = stats.ttest_rel(dgp, none).confidence_interval(0.95)
    assert f"difference -0.0133, 95 % [{low:.3g}, {high:.3g}]" in close.words
    assert "0.797 against 0.81, at most 0.025 lost, 3 seeds" in close.words
    (far,) = verdicts(seeds(none=none, dgp=dgp), claim | {"loses_at_most": 0.01})
    assert far.verdict == "does not hold"


def test_within_is_two_tests_and_losing_is_one():
    gain = seeds(none=[0.5, 0.51, 0.52], dgp=[0.6, 0.61, 0.62])
    claim = {"name": "a", "text": "", "of": {**ACCURACY, "defense": "dgp"}}
    claim["from"] = {**ACCURACY, "defense": "none"}
    assert verdicts(gain, claim | {"within": 0.02})[0].verdict == "does not hold"
    assert verdicts(gain, claim | {"loses_at_most": 0.02})[0].verdict == "holds"


def test_two_seeds_are_too_few():
    claim = {"name": "a", "text": "", "less": {**ACCURACY, "defense": "dgp"}}
    (verdict,) = verdicts(
        seeds(none=[0.9, 0.9], dgp=[0.1, 0.1]), claim | {"than": {**ACCURACY, "defense": "none"}}
    )
    assert verdict.words.startswith("not decided: too few seeds (2), 0.1 < 0.9")


def test_a_bound_is_tested_like_a_side():
    cells = images([0.99] * 30, [0.2] * 30)
    high = {"name": "a", "text": "", "at_least": 0.98, "of": {**SSIM, "defense": "none"}}
    low = {"name": "b", "text": "", "at_most": 0.1, "of": {**SSIM, "defense": "dgp"}}
    first, second = verdicts(cells, high, low)
    assert first.words.startswith("holds, 0.99 ≥ 0.98, 30 images, p = ")
    assert second.words.startswith("does not hold, 0.2 > 0.1")


def test_exact_comparisons_have_no_test():
    cells = images([0.5, 0.9], [0.2, 0.3])
    most = {"name": "a", "text": "", "at_most": 0.3, "of": {**SSIM, "defense": "dgp", "take": "max"}}
    (verdict,) = verdicts(cells, most | {"exact": True})
    assert verdict.words.startswith("holds, 0.3 ≤ 0.3, 2 images")
    assert verdict.p is None
    bytes_sent = {"part": "accuracy", "metric": "uplink_bytes"}
    counted = [
        finished(planned("accuracy", defense=d, seed=0), uplink_bytes=v) for d, v in (("none", 9), ("dgp", 3))
    ]
    less = {"less": {**bytes_sent, "defense": "dgp"}, "than": {**bytes_sent, "defense": "none"}}
    (verdict,) = verdicts(counted, {"name": "a", "text": "", **less})
    assert verdict.words == "holds, 3 < 9, 1 seed"
