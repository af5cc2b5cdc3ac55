import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from attacks.optimisation.objectives import cosine_distance, squared_distance


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
