"""Signs and supports: the client's own gradient explains them, and better than others do."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks.optimisation.objectives import cosine_distance
from attacks.optimisation.sign_likelihood import DIRECTION, STEEPNESS, sign_likelihood, support_hinge

SIZES = [12, 30, 3]


def gradients(count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, sum(SIZES), generator=generator, dtype=torch.float64)
    return torch.cat([part * 10**i for i, part in enumerate(drawn.split(SIZES, dim=1))], dim=1)


def ternary(gradient: torch.Tensor, kept: int) -> tuple[torch.Tensor, torch.Tensor]:
    parts, masks = [], []
    for part in gradient.split(SIZES, dim=1):
        top = part.abs().topk(min(kept, part.shape[1]), dim=1)
        mask = torch.zeros_like(part).scatter(1, top.indices, 1.0)
        parts.append(mask * part.sign() * top.values.mean(dim=1, keepdim=True))
        masks.append(mask.bool())
    return torch.cat(parts, dim=1), torch.cat(masks, dim=1)


def nothing(target, mask):
    return lambda gradient: gradient.new_zeros(len(gradient))


def test_the_likelihood_is_that_of_a_logistic_classifier():
    target = torch.tensor([[1.0, -1.0, 0.0]]).double()
    guess = torch.tensor([[3.0, 4.0, 5.0]]).double()
    unit = math.sqrt((9 + 16 + 25) / 3)
    right = math.log(1 + math.exp(-STEEPNESS * 3 / unit))
    wrong = math.log(1 + math.exp(STEEPNESS * 4 / unit))
    silent = math.log(1 + (5 / unit) ** 2)
    found = sign_likelihood(nothing, [3])(target, None)(guess)
    assert float(found) == pytest.approx((right + wrong + silent) / 3)
    masked = sign_likelihood(nothing, [3])(target, torch.tensor([[True, False, False]]))(guess)
    assert float(masked) == pytest.approx(right)


def test_the_distance_on_the_values_is_added():
    gradient = gradients(2)
    target = gradient.sign()
    whole, alone = (
        sign_likelihood(base, SIZES)(target, None)(gradient) for base in (cosine_distance, nothing)
    )
    torch.testing.assert_close(whole - alone, DIRECTION * cosine_distance(target)(gradient))


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_signs_are_likelier_from_their_own_gradient_whatever_the_scale_of_each_tensor(seed, factor):
    gradient = gradients(3, seed)
    scales = torch.cat([torch.full((n,), factor**i, dtype=torch.float64) for i, n in enumerate(SIZES)])
    distance = sign_likelihood(nothing, SIZES)(gradient.sign(), None)
    torch.testing.assert_close(distance(gradient), distance(gradient * scales))
    assert (distance(gradient) < distance(-gradient)).all()


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_the_gradient_behind_a_support_breaks_no_rule(seed, kept):
    gradient = gradients(3, seed)
    target, mask = ternary(gradient, kept)
    distance = support_hinge(nothing, SIZES)(target, mask)
    torch.testing.assert_close(distance(gradient), torch.zeros(3).double(), atol=1e-12, rtol=0)
    assert (distance(-gradient) > 0.9).all()


def test_another_support_breaks_the_rule_and_a_slope_leads_back():
    gradient = gradients(1)
    target, mask = ternary(gradient, 4)
    distance = support_hinge(nothing, SIZES)(target, mask)
    guess = gradients(1, seed=9).requires_grad_()
    before = distance(guess)
    (slope,) = torch.autograd.grad(before.sum(), guess)
    assert before > 0.1
    assert distance(guess.detach() - 1e-4 * slope / slope.norm()) < before


def test_each_guess_has_its_own_number_of_entries():
    gradient = gradients(2)
    few, many = ternary(gradient[:1], 2), ternary(gradient[1:], 7)
    target, mask = (torch.cat(pair) for pair in zip(few, many, strict=True))
    together = support_hinge(cosine_distance, SIZES)(target, mask)(gradient)
    alone = [
        support_hinge(cosine_distance, SIZES)(*one)(g[None])
        for one, g in zip((few, many), gradient, strict=True)
    ]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("make", [sign_likelihood, support_hinge])
def test_nothing_sent_and_a_guess_of_zeros_are_finite(make):
    zero = torch.zeros(1, sum(SIZES)).requires_grad_()
    target, mask = ternary(gradients(1), 3)
    for goal, seen in ((target, mask), (torch.zeros_like(target), torch.zeros_like(mask))):
        value = make(cosine_distance, SIZES)(goal.float(), seen)(zero)
        (slope,) = torch.autograd.grad(value.sum(), zero)
        assert value.isfinite().all()
        assert slope.isfinite().all()
