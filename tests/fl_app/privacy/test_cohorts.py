"""Poisson draws: one coin a client, and a divisor that does not tell how they fell."""

import math

import pytest
from scipy.stats import binom, chisquare

from fl_app.privacy.cohorts import draw_poisson, mean_divisor
from fl_app.seeding import generator_for


def test_sizes_and_members_are_those_of_independent_coins():
    clients, rate, rounds = list(range(100, 160)), 0.1, 4000
    sizes, times = [0] * 61, dict.fromkeys(clients, 0)
    for round in range(rounds):
        drawn = draw_poisson(clients, rate, generator_for(0, round, -1, "cohort"))
        assert drawn == sorted(set(drawn))
        sizes[len(drawn)] += 1
        for client in drawn:
            times[client] += 1
    expected = binom.pmf(range(61), 60, rate) * rounds
    low, high = 2, 11  # ends are put together: their counts are small
    pooled = [sum(sizes[: low + 1]), *sizes[low + 1 : high], sum(sizes[high:])]
    wanted = [sum(expected[: low + 1]), *expected[low + 1 : high], sum(expected[high:])]
    assert chisquare(pooled, wanted).pvalue > 1e-4
    spread = math.sqrt(rounds * rate * (1 - rate))
    assert max(abs(count - rounds * rate) for count in times.values()) < 5 * spread


def test_the_operating_systems_coins_are_never_the_same():
    clients = range(500)
    drawn = [draw_poisson(clients, 0.5, None) for _ in range(3)]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]
    assert all(abs(len(one) - 250) < 5 * math.sqrt(125) for one in drawn)


def test_certain_coins_draw_all():
    assert draw_poisson([3, 5], 1.0, None) == [3, 5]
    assert draw_poisson([], 0.5, None) == []


def test_only_a_fixed_draw_is_divided_by_its_size():
    assert mean_divisor("poisson", rate=1 / 60, clients=6000, counted=83) == pytest.approx(100)
    assert mean_divisor("fixed", rate=1 / 60, clients=6000, counted=83) == 83


def test_what_is_no_rate_or_sampling_is_refused():
    with pytest.raises(ValueError, match=r"draw_poisson: rate must be in \(0, 1\], got 0"):
        draw_poisson([1], 0, None)
    with pytest.raises(ValueError, match="sampling must be one of poisson, fixed; got 'all'"):
        mean_divisor("all", rate=1, clients=1, counted=1)
