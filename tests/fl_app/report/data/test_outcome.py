"""Grades follow what an attack recovered, not the place where a picture stands."""

import pytest

from fl_app.report.data.outcome import Outcome, count_recognised, grade_picture, outcome_of
from fl_app.results import Attack


def attack(**scores):
    return Attack(round=1, client=0, **scores)


@pytest.mark.parametrize(
    ("scores", "outcome"),
    [
        ({"ssim": [0.2, 0.5], "psnr": [9.0, 12.0]}, Outcome.RECOGNISABLE),
        ({"ssim": [0.2, 0.499], "psnr": [9.0, 12.0]}, Outcome.DEGRADED),
        ({"ssim": [0.29], "psnr": [24.9]}, Outcome.HIDDEN),
        ({"ssim": [0.1], "psnr": [25.0]}, Outcome.RECOGNISABLE),
        ({"ssim": [None], "psnr": [None]}, Outcome.UNKNOWN),
        ({}, Outcome.UNKNOWN),
        ({"labels": {"f1": 1.0}}, Outcome.RECOGNISABLE),
        ({"token_accuracy": 0.4}, Outcome.DEGRADED),
        ({"token_wer": 0.9}, Outcome.HIDDEN),
    ],
)
def test_the_attackers_best_result_decides(scores, outcome):
    assert (
        outcome_of(
            [attack(ssim=[0.0]), attack(**scores)] if outcome is not Outcome.UNKNOWN else [attack(**scores)]
        )
        is outcome
    )


def test_a_picture_counts_once_by_the_best_attack_on_it():
    plain, adaptive = attack(ssim=[0.6, 0.1]), attack(ssim=[0.2, 0.2], adaptive=True)
    assert count_recognised([plain, adaptive]) == (1, 2)
    assert grade_picture(plain, 0) is Outcome.RECOGNISABLE
    assert grade_picture(plain, 5) is Outcome.UNKNOWN


def test_each_grade_has_its_own_look_and_sign():
    assert (
        len({outcome.look for outcome in Outcome})
        == len({outcome.icon for outcome in Outcome})
        == len(Outcome)
    )
