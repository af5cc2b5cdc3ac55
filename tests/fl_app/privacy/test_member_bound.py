"""Bound of differential privacy on membership tests, and counts that refute it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fl_app.privacy.gaussian_privacy import gaussian_epsilon
from fl_app.privacy.member_bound import member_bound, refutes


def test_without_epsilon_a_guess_is_the_most():
    assert [member_bound(rate, 0.0, 0.0) for rate in (0.0, 0.2, 1.0)] == pytest.approx([0.0, 0.2, 1.0])


@given(st.floats(0, 1), st.floats(0, 5), st.floats(0, 0.1))
def test_the_bound_is_the_stricter_of_both_sides_and_a_probability(rate, epsilon, delta):
    bound = member_bound(rate, epsilon, delta)
    assert 0 <= bound <= 1
    assert bound <= math.exp(epsilon) * rate + delta + 1e-12
    assert 1 - rate <= math.exp(epsilon) * (1 - bound) + delta + 1e-9 or bound == 1.0


@pytest.mark.parametrize("shift", [0.3, 1.0, 3.0])
def test_the_best_test_of_gaussian_noise_stays_below_its_own_bound(shift):
    delta = 1e-5
    epsilon = gaussian_epsilon(shift, delta)
    for rate in (0.001, 0.01, 0.1, 0.5):
        assert float(norm.cdf(norm.ppf(rate) + shift)) <= member_bound(rate, epsilon, delta) + 1e-9


def test_randomised_response_meets_its_bound_and_refutes_a_smaller_one():
    # it tells the truth three times of four: epsilon = ln 3
    generator, members = torch.Generator().manual_seed(1), 4000
    hits = int((torch.rand(members, generator=generator) < 0.75).sum())
    alarms = int((torch.rand(members, generator=generator) < 0.25).sum())
    honest, claimed = math.log(3), math.log(3) - 0.3
    assert not refutes(hits, members, alarms, members, epsilon=honest, delta=0.0)
    assert refutes(hits, members, alarms, members, epsilon=claimed, delta=0.0)


def test_a_true_promise_is_seldom_refuted_among_many_tests():
    generator, wrong = torch.Generator().manual_seed(2), 0
    for _ in range(100):
        draws = torch.rand(2, 5, 200, generator=generator)
        hits, alarms = (draws[0] < 0.75).sum(dim=1).tolist(), (draws[1] < 0.25).sum(dim=1).tolist()
        wrong += any(
            refutes(h, 200, a, 200, epsilon=math.log(3), delta=0.0, tests=5)
            for h, a in zip(hits, alarms, strict=True)
        )
    assert wrong <= 5


def test_promises_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="member_bound"):
        member_bound(0.5, -1.0, 0.0)
