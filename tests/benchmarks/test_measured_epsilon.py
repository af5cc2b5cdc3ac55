"""Faulty variants of the mechanisms are caught, and the sound ones are not accused."""

import pytest

from benchmarks.measured_epsilon import SIGMA, TRIALS, cases
from fl_app.privacy.gaussian_privacy import gaussian_epsilon

NAMES = [case.name for case in cases()]
LONG = ("discrete", "rounded", "record")


def verdict(name: str, seed: int) -> None:
    case = next(case for case in cases(seed) if case.name == name)
    assert case.measure().refutes(case.claimed_distance) == case.faulty


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if any(word in name for word in LONG) else ())
        for name in NAMES
    ],
)
def test_the_claim_is_refuted_where_the_mechanism_is_faulty_and_nowhere_else(name):
    verdict(name, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", [name for name in NAMES if not any(word in name for word in LONG)])
def test_the_verdict_does_not_depend_on_luck(name, seed):
    verdict(name, seed)


def test_the_sound_mechanism_is_measured_close_to_its_exact_epsilon():
    case = cases()[0]
    found = case.measure()
    assert (case.trials, case.claimed) == (TRIALS, gaussian_epsilon(1 / SIGMA, 1e-5))
    assert found.gaussian.low <= case.claimed <= found.gaussian.high
    assert found.gaussian.low >= 0.6 * case.claimed


@pytest.mark.slow
def test_discrete_noise_is_measured_close_to_its_exact_epsilon():
    case = next(case for case in cases() if case.name == "discrete Gaussian")
    found = case.measure()
    assert found.gaussian.low <= case.claimed <= found.gaussian.high
    assert found.gaussian.estimate >= 0.6 * case.claimed
