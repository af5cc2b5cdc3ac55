"""Normal numbers: their law, and that the operating system's come once."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from fl_app.privacy import normal_noise
from fl_app.privacy.normal_noise import replayable_noise, secure_noise, secure_uniform
from fl_app.seeding import generator_for

N = 200_000
SOURCES = {
    "replayable": lambda: replayable_noise(generator_for(0, 1, 2, "noise")),
    "secure": secure_noise,
}


@pytest.fixture(params=sorted(SOURCES))
def drawn(request) -> torch.Tensor:
    return SOURCES[request.param]()(N)


def test_the_law_is_the_standard_normal_one(drawn):
    # chances of about 1 in a million each, for a source that may not be seeded
    assert drawn.dtype == torch.float64
    assert abs(float(drawn.mean())) < 5 / math.sqrt(N)
    assert abs(float(drawn.var()) - 1) < 5 * math.sqrt(2 / N)
    assert abs(float((drawn**3).mean())) < 5 * math.sqrt(15 / N)
    assert abs(float((drawn**4).mean()) - 3) < 5 * math.sqrt(96 / N)
    assert kstest(drawn.numpy(), "norm").pvalue > 1e-6


def test_numbers_are_unrelated(drawn):
    for lag in (1, 2, N // 2):  # the two numbers of a pair are half the length apart
        a, b = drawn[:-lag], drawn[lag:]
        bound = 5 / math.sqrt(len(a))
        assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < bound
        assert abs(float(torch.corrcoef(torch.stack([a**2, b**2]))[0, 1])) < bound


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_any_number_of_them_is_drawn(count):
    for source in SOURCES.values():
        assert source()(count).shape == (count,)


def test_secure_noise_never_repeats_whatever_the_seed():
    draws = []
    for _ in range(3):
        torch.manual_seed(0)
        np.random.seed(0)
        draws.append(secure_noise()(100))
    assert len(set(torch.cat(draws).tolist())) == 300


def test_replayable_noise_repeats():
    one, two = (replayable_noise(generator_for(0, 1, 2, "noise"))(10) for _ in range(2))
    assert torch.equal(one, two)


@pytest.mark.parametrize(("byte", "largest"), [(b"\x00", math.sqrt(2 * 53 * math.log(2))), (b"\xff", 0.0)])
def test_no_bits_make_infinity(monkeypatch, byte, largest):
    monkeypatch.setattr(normal_noise.os, "urandom", lambda count: byte * count)
    drawn = secure_noise()(4)
    assert torch.isfinite(drawn).all()
    assert float(drawn.abs().max()) == pytest.approx(largest, abs=1e-6)


def test_uniform_numbers_are_uniform_and_below_1(monkeypatch):
    drawn = secure_uniform(N)
    assert kstest(drawn.numpy(), "uniform").pvalue > 1e-6
    monkeypatch.setattr(normal_noise.os, "urandom", lambda count: b"\xff" * count)
    assert float(secure_uniform(1)) == 1 - 2**-53
