"""Cocktail party: independent sources come back, whatever the activation; premises are checked."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks.analytic.cocktail_party import _GAUSSIAN, cocktail_party
from attacks.metrics import match, mse


def sources(count: int) -> torch.Tensor:
    """Pictures of independent pixels of a law that is far from Gaussian: most dark, few bright."""
    drawn = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(count)).double()
    return drawn**12


def model(activation=nn.Sigmoid, bias=True) -> nn.Module:
    torch.manual_seed(1)
    first = nn.Linear(768, 80, bias=bias)
    return nn.Sequential(nn.Flatten(), first, activation(), nn.Linear(80, 10)).double()


def likeness(found: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    """Correlation of each picture with the found one that is most like it."""
    both = torch.cat([found, pixels]).flatten(1)
    return torch.corrcoef(both)[len(found) :, : len(found)].amax(dim=1)


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.ReLU])
@pytest.mark.parametrize("count", [2, 4])
def test_independent_pictures_come_back(observe, count, activation):
    pixels = sources(count)
    result = cocktail_party()(observe(model(activation), pixels, torch.arange(count)))
    assert result.images.shape == pixels.shape
    assert (likeness(result.images, pixels) > 0.9).all()
    assert (mse(result.images[match(result.images, pixels)], pixels) < 0.5 * pixels.var()).all()


def test_noise_is_survived(observe):
    pixels = sources(3)
    obs = observe(model(), pixels, torch.arange(3))
    generator = torch.Generator().manual_seed(0)
    noisy = {
        name: g + 0.02 * g.square().mean().sqrt() * torch.randn(g.shape, generator=generator, dtype=g.dtype)
        for name, g in obs.update.items()
    }
    result = cocktail_party()(replace(obs, update=noisy))
    assert (likeness(result.images, pixels) > 0.85).all()


def test_premises_are_checked(observe):
    pixels = sources(3)
    twice = torch.cat([pixels[:1], pixels[:1], pixels[1:2]])
    cases = {
        "got none": observe(model(bias=False), pixels, torch.arange(3)),
        "rank 2": observe(model(), twice, torch.tensor([0, 0, 1])),
    }
    for words, obs in cases.items():
        result = cocktail_party()(obs)
        assert len(result.images) == 0
        assert words in result.notes[-1]


def test_the_gaussian_reference_is_the_integral():
    x = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
    density = torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
    assert float(torch.trapezoid(torch.log(torch.cosh(x)) * density, x)) == pytest.approx(_GAUSSIAN, abs=1e-7)
