"""The discrete Gaussian: its probabilities, summed over all paths of the sampler, and its laws."""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_app.privacy import discrete_gaussian
from fl_app.privacy.conditional_rounding import round_conditionally, rounded_norm
from fl_app.privacy.discrete_gaussian import (
    LARGEST_VARIANCE,
    sample_discrete_gaussian,
    seeded_bits,
    system_bits,
)


class Fork(Exception):
    """The sampler asks for a draw that the script does not have yet."""

    def __init__(self, chances: dict[object, float]) -> None:
        super().__init__()
        self.chances = chances


class Restart(Exception):
    """The sampler rejected its proposal and begins anew."""


def all_paths(monkeypatch, call, chances, *, first: str = "", cut: float = 1e-13) -> dict[object, float]:
    """Return the probability of each result of ``call()``, with draws replaced by branches.

    ``chances`` gives, by the name of a function of the module, the probabilities of what it returns.
    When ``first`` is asked a second time the sampler has rejected: results are those of one accepted try.
    """
    found: dict[object, float] = defaultdict(float)
    open_: list[tuple[tuple[object, ...], float]] = [((), 1.0)]
    while open_:
        choices, chance = open_.pop()
        if chance < cut:
            continue
        script, asked = list(choices), []

        def draw(name, *given, script=script, asked=asked):
            if np.size(given[0]) == 0:
                return np.empty(0, bool)
            asked.append(name)
            if first and asked.count(first) > 1:
                raise Restart
            if not script:
                raise Fork(chances[name](*given))
            return np.array([script.pop(0)])

        for name in chances:
            monkeypatch.setattr(discrete_gaussian, name, partial(draw, name))
        try:
            found[call().item()] += chance
        except Fork as fork:
            open_ += [((*choices, value), chance * p) for value, p in fork.chances.items() if p > 0]
        except Restart:
            pass
        monkeypatch.undo()
    total = math.fsum(found.values())
    return {value: chance / total for value, chance in found.items()} if first else dict(found)


def coin(chance: float) -> dict[object, float]:
    return {True: chance, False: 1 - chance}


def density(weight, reach: int) -> dict[int, float]:
    weights = {x: weight(x) for x in range(-reach, reach + 1)}
    total = math.fsum(weights.values())
    return {x: w / total for x, w in weights.items()}


def assert_same(found: dict[object, float], expected: dict[int, float]) -> None:
    assert max(abs(found.get(x, 0.0) - chance) for x, chance in expected.items()) < 1e-9


def one(value: int) -> np.ndarray:
    return np.array([value], np.uint64)


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 1), (1, 3), (5, 7), (999, 1000)])
def test_a_coin_of_an_exponential_falls_with_just_that_chance(monkeypatch, numerator, denominator):
    found = all_paths(
        monkeypatch,
        lambda: discrete_gaussian._coin_exp(one(numerator), denominator, system_bits),
        {"_coin": lambda n, d, bits: coin(int(n[0]) / d)},
        cut=1e-16,
    )
    assert found.get(True, 0.0) == pytest.approx(math.exp(-numerator / denominator), abs=1e-14)


@pytest.mark.parametrize("root", [0, 3, 17, 40, (1 << 31) + 5])
def test_a_coin_of_a_square_falls_with_just_that_chance(monkeypatch, root):
    denominator = 300 if root < 1 << 31 else (1 << 62) // 3
    found = all_paths(
        monkeypatch,
        lambda: discrete_gaussian._coin_exp_of_square(np.array([root]), denominator, system_bits),
        {"_coin_exp": lambda n, d, bits: coin(math.exp(-int(n[0]) / d))},
    )
    assert found.get(True, 0.0) == pytest.approx(math.exp(-(root**2) / denominator), abs=1e-12)


def test_geometric_numbers_have_their_density(monkeypatch):
    found = all_paths(
        monkeypatch,
        lambda: discrete_gaussian._geometric(1, system_bits),
        {"_coin_exp": lambda n, d, bits: coin(math.exp(-int(n[0]) / d))},
    )
    for x in range(20):
        assert found[x] == pytest.approx(math.exp(-x) * (1 - math.exp(-1)), abs=1e-12)


@pytest.mark.parametrize("scale", [1, 2, 5])
def test_the_proposal_is_a_discrete_laplace(monkeypatch, scale):
    found = all_paths(
        monkeypatch,
        lambda: discrete_gaussian._discrete_laplace(scale, 1, system_bits),
        {
            "_below": lambda limit, count, bits: {np.uint64(i): 1 / limit for i in range(limit)},
            "_coin_exp": lambda n, d, bits: coin(math.exp(-int(n[0]) / d)),
            "_geometric": lambda count, bits: {x: math.exp(-x) * (1 - math.exp(-1)) for x in range(40)},
            "_coin": lambda n, d, bits: coin(int(n[0]) / d),
        },
        first="_below",
    )
    assert_same(found, density(lambda x: math.exp(-abs(x) / scale), 30 * scale))


@pytest.mark.parametrize("variance", [1, 2, 5, 100])
def test_what_is_accepted_is_a_discrete_gaussian(monkeypatch, variance):
    scale = math.isqrt(variance) + 1
    laplace = density(lambda x: math.exp(-abs(x) / scale), 30 * scale)
    found = all_paths(
        monkeypatch,
        lambda: sample_discrete_gaussian(variance, 1),
        {
            "_discrete_laplace": lambda scale, count, bits: laplace,
            "_coin_exp_of_square": lambda root, d, bits: coin(math.exp(-(int(root[0]) ** 2) / d)),
        },
        first="_discrete_laplace",
    )
    assert_same(found, density(lambda x: math.exp(-(x**2) / (2 * variance)), 15 * scale))


@pytest.mark.parametrize("variance", [1, 7, 64**2, LARGEST_VARIANCE])
def test_samples_have_the_moments_of_the_density(variance):
    drawn = sample_discrete_gaussian(variance, 100_000, seeded_bits(torch.Generator().manual_seed(1)))
    deviation = math.sqrt(variance)
    assert abs(drawn.mean()) < 5 * deviation / math.sqrt(drawn.size)
    assert drawn.var() == pytest.approx(variance, rel=0.03)
    assert stats.kurtosis(drawn) == pytest.approx(0.0, abs=0.1)


def test_small_variances_pass_a_chi_square_test():
    drawn = sample_discrete_gaussian(3, 50_000, seeded_bits(torch.Generator().manual_seed(2)))
    expected = density(lambda x: math.exp(-(x**2) / 6), 30)
    values = range(-4, 5)
    counts = [(drawn == x).sum() for x in values] + [(np.abs(drawn) > 4).sum()]
    chances = [expected[x] for x in values]
    chances.append(1 - sum(chances))
    assert stats.chisquare(counts, np.array(chances) * drawn.size).pvalue > 1e-4


def test_the_same_seed_draws_the_same_and_the_system_never_does():
    first, again = (
        sample_discrete_gaussian(9, 50, seeded_bits(torch.Generator().manual_seed(3))) for _ in "ab"
    )
    assert (first == again).all()
    assert (system_bits(8) != system_bits(8)).any()


@pytest.mark.parametrize("variance", [0, -1, 1.5, True, LARGEST_VARIANCE + 1])
def test_a_variance_that_cannot_be_sampled_exactly_is_refused(variance):
    with pytest.raises(ValueError, match="variance must be a whole number"):
        sample_discrete_gaussian(variance, 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-50, 50, allow_nan=False), min_size=1, max_size=40),
    st.integers(0, 2**31),
)
def test_rounding_never_exceeds_its_bound_and_moves_no_entry_by_a_step(values, seed):
    vector = np.array(values)
    norm = max(float(np.linalg.norm(vector)), 0.1)
    bits = seeded_bits(torch.Generator().manual_seed(seed))
    rounded = round_conditionally(vector, norm, bits=bits)
    assert (np.abs(rounded - vector) < 1).all()
    assert float(np.linalg.norm(rounded)) <= rounded_norm(norm, vector.size) * (1 + 1e-12)


def test_rounding_keeps_the_expectation():
    vector = np.full(2000, 0.3)
    bits = seeded_bits(torch.Generator().manual_seed(5))
    mean = np.mean([round_conditionally(vector, 100.0, bits=bits).mean() for _ in range(20)])
    assert mean == pytest.approx(0.3, abs=0.01)
