"""Unsent entries count against a guess that makes them too large, or not large enough."""

import pytest
import torch

from attacks.optimisation.hinges import hinged
from attacks.optimisation.objectives import cosine_distance, squared_distance

SIZES = (6, 5)


def case():
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(3, 11, generator=generator, dtype=torch.float64)
    sent = torch.zeros(3, 11, dtype=torch.bool)
    for row in range(3):
        for start, size in ((0, 6), (6, 5)):
            order = gradient[row, start : start + size].abs().argsort(descending=True)
            sent[row, start + order[1:3]] = True  # neither the largest nor the small ones
    return gradient, gradient * sent, sent


def by_hand(guess, target, sent, two_sided):
    total = []
    for row in range(len(guess)):
        scale = max(
            0.0, float((guess[row] * target[row])[sent[row]].sum() / guess[row][sent[row]].square().sum())
        )
        broken, power = 0.0, float(target[row].square().sum())
        for start, size in ((0, 6), (6, 5)):
            known = [abs(float(target[row, i])) for i in range(start, start + size) if sent[row, i]]
            for i in range(start, start + size):
                if not sent[row, i]:
                    value = abs(scale * float(guess[row, i]))
                    excess = max(0.0, value - min(known))
                    if two_sided:
                        excess = min(excess, max(0.0, max(known) - value))
                    broken += excess**2
        total.append(broken / power)
    return torch.tensor(total, dtype=torch.float64)


@pytest.mark.parametrize("two_sided", [False, True])
@pytest.mark.parametrize("base", [cosine_distance, squared_distance])
def test_it_is_the_sum_of_a_plain_loop(two_sided, base):
    _, target, sent = case()
    guess = torch.randn(3, 11, dtype=torch.float64)
    found = hinged(base, SIZES, two_sided=two_sided, weight=0.7)(target, sent)(guess)
    expected = base(target, sent)(guess) + 0.7 * by_hand(guess, target, sent, two_sided)
    torch.testing.assert_close(found, expected)


def test_the_true_gradient_breaks_no_rule_at_any_scale():
    gradient, target, sent = case()
    for scale in (0.1, 1.0, 30.0):
        found = hinged(cosine_distance, SIZES, two_sided=True, weight=1.0)(target, sent)(scale * gradient)
        torch.testing.assert_close(found, torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    # dual pruning withheld the largest ones: for top-k they would be too large
    assert (hinged(cosine_distance, SIZES, two_sided=False, weight=1.0)(target, sent)(gradient) > 0).all()


def test_a_tensor_of_which_nothing_was_sent_has_no_rule():
    target, sent = torch.zeros(1, 11), torch.zeros(1, 11, dtype=torch.bool)
    target[0, 0], sent[0, 0] = 1.0, True
    guess = torch.full((1, 11), 0.5)
    found = hinged(squared_distance, SIZES, two_sided=True, weight=1.0)(target, sent)
    assert torch.isfinite(found(guess)).all()
    guess[0, 6:] = 1e6
    torch.testing.assert_close(found(guess), found(torch.full((1, 11), 0.5)))


def test_everything_counts_without_a_mask():
    gradient, _, _ = case()
    plain = squared_distance(gradient, None)(2 * gradient)
    assert torch.equal(
        hinged(squared_distance, SIZES, two_sided=True, weight=9.0)(gradient, None)(2 * gradient), plain
    )


@pytest.mark.parametrize("two_sided", [False, True])
def test_its_gradient_is_that_of_finite_differences(two_sided):
    _, target, sent = case()
    distance = hinged(cosine_distance, SIZES, two_sided=two_sided, weight=0.3)(target, sent)
    guess = torch.randn(3, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(distance, (guess,))
