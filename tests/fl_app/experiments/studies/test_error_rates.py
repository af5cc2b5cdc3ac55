"""Error rates by simulation: at the bound a test errs at most as often as it says."""

import numpy as np
import pytest
from scipy import stats
from study_cells import finished, one_each, planned, study

from fl_app.experiments.studies.bounded_mean import betting_interval, betting_p, binomial_interval, binomial_p
from fl_app.experiments.studies.claims import judge
from fl_app.experiments.studies.protocol import Margin, Protocol
from fl_app.experiments.studies.significance import (
    sign_flip_interval,
    sign_flip_p,
    sign_interval,
    sign_p,
    student_interval,
    student_p,
)

REPEATS = [400, pytest.param(10_000, marks=pytest.mark.slow)]
LEVELS = (0.05, 0.001)


def allowed(level, repeats):
    """The number of errors that a test at its level exceeds once in a million times."""
    return stats.binom.isf(1e-6, repeats, level)


def ceiling(rng, n):
    # nearly always 1: a normal law sees no spread here
    return (rng.random(n) < 0.9).astype(float)


def skewed(rng, n):
    return rng.beta(0.9, 0.1, size=n)


AT_THE_BOUND = {
    "binomial": (binomial_p, ceiling, 0.9),
    "betting on hits": (betting_p, ceiling, 0.9),
    "betting on skewed scores": (betting_p, skewed, 0.9),
    "betting on uniform scores": (betting_p, lambda rng, n: rng.random(n), 0.5),
    "sign flips": (
        lambda x, c: sign_flip_p([v - c for v in x]),
        lambda rng, n: rng.laplace(0.2, size=n),
        0.2,
    ),
    "Student": (student_p, lambda rng, n: rng.normal(0.2, 1, size=n), 0.2),
    "sign test": (sign_p, lambda rng, n: rng.exponential(size=n), np.log(2)),
}


@pytest.mark.parametrize("repeats", REPEATS)
@pytest.mark.parametrize("name", AT_THE_BOUND)
def test_at_the_bound_a_test_errs_no_more_often_than_its_level(name, repeats):
    p_value, draw, bound = AT_THE_BOUND[name]
    rng = np.random.default_rng(1)
    sizes = (3, 10) if name == "Student" else (8, 20)
    for n in sizes:
        found = np.array([p_value(list(draw(rng, n)), bound) for _ in range(repeats)])
        for level in LEVELS:
            assert np.count_nonzero(found <= level) <= allowed(level, repeats), (n, level)


INTERVALS = {
    "binomial": (binomial_interval, ceiling, 0.9),
    "betting": (betting_interval, skewed, 0.9),
    "sign flips": (sign_flip_interval, lambda rng, n: rng.laplace(0.2, size=n), 0.2),
    "Student": (student_interval, lambda rng, n: rng.normal(0.2, 1, size=n), 0.2),
    "sign test": (sign_interval, lambda rng, n: rng.exponential(size=n), np.log(2)),
}


@pytest.mark.parametrize("repeats", [200, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", INTERVALS)
def test_an_interval_misses_the_truth_no_more_often_than_it_says(name, repeats):
    interval, draw, truth = INTERVALS[name]
    rng = np.random.default_rng(2)
    found = [interval(list(draw(rng, 12))) for _ in range(repeats)]
    missed = sum(not low - 1e-9 <= truth <= high + 1e-9 for low, high in found)
    assert missed <= allowed(0.05, repeats)


@pytest.mark.parametrize(
    ("n", "p_value", "draw", "bound", "level"),
    [
        # the planned numbers of units: an effect of 0.021 with an sd of 0.0066 in 7 seeds, and 0.99 above 0.9
        (7, student_p, lambda rng, n: rng.normal(0.0207, 0.0066, size=n), 0.0, 0.001),
        (46, binomial_p, lambda rng, n: (rng.random(n) < 0.99).astype(float), 0.9, 0.05),
        (108, binomial_p, lambda rng, n: (rng.random(n) < 0.99).astype(float), 0.9, 0.001),
        (14, binomial_p, lambda rng, n: (rng.random(n) < 0.975).astype(float), 0.5, 0.001),
    ],
)
def test_planned_numbers_of_units_have_ninety_per_cent_power(n, p_value, draw, bound, level):
    rng = np.random.default_rng(3)
    found = [p_value(list(draw(rng, n)), bound) <= level for _ in range(1_000)]
    assert stats.binomtest(sum(found), len(found), 0.9, alternative="less").pvalue > 1e-4


TRUTHS = {  # by how much a defense lowers the SSIM, the spread of that, and the verdict on "it lowers it"
    "true": (0.3, 0.1, "holds"),
    "false": (-0.3, 0.1, "refuted"),
    "equal": (0.0, 0.01, "equivalent"),
    "undecidable": (0.02, 0.4, "not decided"),
}


@pytest.mark.parametrize("seed", range(3))
def test_planted_truths_get_their_verdicts(seed):
    rng = np.random.default_rng(seed)
    base = rng.uniform(0.4, 0.6, size=30)
    ssim = {"part": "ig", "metric": "ssim"}
    cells, claims = [finished(planned(defense="none"), attacks=one_each(list(base)))], []
    for name, (effect, spread, _) in TRUTHS.items():
        values = base - effect + rng.normal(0, spread, size=base.size)
        cells.append(finished(planned(defense=name), attacks=one_each(list(values))))
        sides = {"less": {**ssim, "defense": name}, "than": {**ssim, "defense": "none"}}
        claims.append({"name": name, "text": "", **sides})
    protocol = Protocol(paper="dgp", written="", margins={"ssim": Margin(margin=0.25, reason="")})
    found = {verdict.claim.name: verdict.verdict for verdict in judge(study(claims=claims), cells, protocol)}
    assert found == {name: verdict for name, (_, _, verdict) in TRUTHS.items()}
