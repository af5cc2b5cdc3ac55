import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from attacks.optimisation.objectives import cosine_distance, relative_distance, squared_distance, squashed


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(2, 3, 20).double())


def test_cosine_agrees_with_torch(pair):
    guess, target = pair
    torch.testing.assert_close(cosine_distance(target)(guess), 1 - F.cosine_similarity(guess, target))


def test_cosine_of_a_mask_is_the_cosine_of_the_entries_left(pair):
    guess, target = pair
    mask = torch.rand(3, 20) < 0.4
    expected = [
        1 - F.cosine_similarity(g[m], t[m], dim=0) for g, t, m in zip(guess, target, mask, strict=True)
    ]
    torch.testing.assert_close(cosine_distance(target, mask)(guess), torch.stack(expected))


def test_cosine_has_its_closed_form_gradient(pair):
    guess, target = pair
    guess.requires_grad_(True)
    (gradient,) = torch.autograd.grad(cosine_distance(target)(guess).sum(), guess)
    a, b = guess.detach(), F.normalize(target)
    length = a.norm(dim=1, keepdim=True)
    cosine = (a * b).sum(dim=1, keepdim=True) / length
    torch.testing.assert_close(gradient, -(b - cosine * a / length) / length)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12])
def test_cosine_knows_no_scale_not_even_in_float32(scale):
    guess, target = torch.randn(2, 2, 50)
    expected = cosine_distance(target)(guess)
    torch.testing.assert_close(cosine_distance(target * scale)(guess * scale), expected)


def test_cosine_of_nothing_is_one_and_has_a_gradient_of_zero():
    guess = torch.randn(1, 5, requires_grad=True)
    value = cosine_distance(torch.zeros(1, 5))(guess)
    (gradient,) = torch.autograd.grad(value.sum(), guess)
    assert value.item() == 1
    assert not gradient.any()
    zero = torch.zeros(1, 5, requires_grad=True)
    value = cosine_distance(torch.ones(1, 5))(zero)
    (gradient,) = torch.autograd.grad(value.sum(), zero)
    assert value.item() == 1
    assert gradient.isfinite().all()


def test_squared_distance_over_a_mask_is_a_plain_sum(pair):
    guess, target = pair
    mask = torch.rand(3, 20) < 0.4
    expected = [
        sum((g - t) ** 2 for g, t in zip(guess[p][mask[p]], target[p][mask[p]], strict=True))
        for p in range(3)
    ]
    torch.testing.assert_close(squared_distance(target, mask)(guess), torch.stack(expected))
    torch.testing.assert_close(squared_distance(target)(guess), (guess - target).norm(dim=1) ** 2)


@pytest.mark.parametrize("matching", [cosine_distance, squared_distance])
def test_autograd_agrees_with_finite_differences(matching, pair):
    guess, target = pair
    assert gradcheck(matching(target, torch.rand(3, 20) < 0.7), guess.requires_grad_(True))


@pytest.mark.parametrize("matching", [cosine_distance, squared_distance])
def test_the_observed_gradient_itself_is_at_distance_zero(matching, pair):
    _, target = pair
    torch.testing.assert_close(matching(target)(target), torch.zeros(3).double())


SIZES = [12, 8]


def signs_of(gradient: torch.Tensor) -> torch.Tensor:
    """What Sign-SGD sends: in every tensor one size."""
    parts = gradient.split(SIZES, dim=1)
    return torch.cat([part.sign() * part.abs().mean(dim=1, keepdim=True) for part in parts], dim=1)


@pytest.mark.parametrize("base", [cosine_distance, squared_distance, relative_distance])
def test_squashed_is_the_base_of_guesses_that_are_squashed_tensor_by_tensor(base, pair):
    guess, gradient = pair
    target = signs_of(gradient)
    rows = []
    for row in range(3):
        numbers, start = [], 0
        for size in SIZES:
            part = [float(x) for x in guess[row, start : start + size]]
            mean = sum(abs(x) for x in part) / size
            seen = max(abs(float(x)) for x in target[row, start : start + size])
            numbers += [seen * math.tanh(x / mean) for x in part]
            start += size
        rows.append(numbers)
    expected = base(target)(torch.tensor(rows).double())
    torch.testing.assert_close(squashed(base, SIZES)(target, None)(guess), expected)


@pytest.mark.parametrize("base", [cosine_distance, relative_distance])
def test_squashed_knows_no_scale_of_any_tensor_of_the_guess(base, pair):
    guess, gradient = pair
    distance = squashed(base, SIZES)(signs_of(gradient), None)
    scaled = torch.cat(
        [scale * part for scale, part in zip((1e-9, 1e4), guess.split(SIZES, 1), strict=True)], 1
    )
    torch.testing.assert_close(distance(scaled), distance(guess))


def test_of_guesses_with_the_true_sizes_that_with_the_true_signs_is_the_nearest():
    gradient = torch.randn(1, 10, generator=torch.Generator().manual_seed(1)).double()
    target = gradient.sign()
    flips = torch.tensor(list(itertools.product([1.0, -1.0], repeat=10))).double()
    for base in (cosine_distance, relative_distance):
        distances = squashed(base, [6, 4])(target.expand(len(flips), -1), None)(flips * gradient)
        assert distances.argmin() == 0, "the first flips nothing"
        assert distances[0] < distances[1:].min()


def test_squashed_is_nearer_to_signs_than_the_gradient_itself(pair):
    _, gradient = pair
    target = signs_of(gradient)
    squashed_distance = squashed(cosine_distance, SIZES)(target, None)(gradient)
    assert (squashed_distance < 0.7 * cosine_distance(target)(gradient)).all()


def test_the_gradient_of_squashed_is_that_of_finite_differences_at_a_fixed_unit(pair):
    guess, gradient = pair
    mask = torch.rand(3, 20) < 0.7
    distance = squashed(cosine_distance, SIZES)(signs_of(gradient), mask)
    (found,) = torch.autograd.grad(distance(guess.requires_grad_(True)).sum(), guess)
    units = [part.detach().abs().mean(dim=1, keepdim=True) for part in guess.split(SIZES, 1)]
    sizes = [part.abs().amax(dim=1, keepdim=True) for part in signs_of(gradient).split(SIZES, 1)]

    def fixed(moved: torch.Tensor) -> torch.Tensor:
        parts = zip(moved.split(SIZES, 1), units, sizes, strict=True)
        return cosine_distance(signs_of(gradient), mask)(
            torch.cat([size * torch.tanh(part / unit) for part, unit, size in parts], 1)
        )

    start = guess.detach()
    step = 1e-6
    for entry in range(20):
        move = torch.zeros(1, 20).double()
        move[0, entry] = step
        slope = (fixed(start + move) - fixed(start - move)) / (2 * step)
        torch.testing.assert_close(found[:, entry], slope, atol=1e-8, rtol=1e-5)


def test_squashed_of_nothing_is_finite():
    zero = torch.zeros(1, 20, requires_grad=True)
    value = squashed(cosine_distance, SIZES)(torch.ones(1, 20), None)(zero)
    (slope,) = torch.autograd.grad(value.sum(), zero)
    assert value.item() == 1
    assert slope.isfinite().all()
