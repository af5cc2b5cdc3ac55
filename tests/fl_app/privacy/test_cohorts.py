"""Poisson draws: one coin a client, and a divisor that does not tell how they fell."""

import math

import pytest
from scipy.stats import binom, chisquare

from fl_app.privacy import ClientLevel
from fl_app.privacy.cohorts import draw_fixed, draw_poisson, mean_divisor
from fl_app.seeding import generator_for
from fl_app.strategies.charges import CohortCharges


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


@pytest.mark.parametrize(
    ("clients", "rate"), [(3, 0.1), (10, 0.25), (10, 0.24), (7, 0.5), (1, 0.3), (6000, 1 / 60)]
)
@pytest.mark.parametrize("seeded", [True, False])
def test_a_draw_of_fixed_size_is_accounted_at_the_rate_at_which_it_draws(clients, rate, seeded):
    level = ClientLevel(
        rounds=2, rate=rate, clients=clients, sampling="fixed", noise_multiplier=2.0, epsilon=None,
        secure=not seeded,
    )  # fmt: skip
    drawn = [level.draw(range(clients), generator_for(0, r, -1, "cohort"), r) for r in range(3)]
    assert {len(one) / clients for one in drawn} == {level.accounted_rate}
    charges = CohortCharges(level)
    charges.charge(1, [0], 1)
    assert list(charges.account.models.spent[-1]) == [(level.accounted_rate, 2.0)]


@pytest.mark.parametrize("seeded", [True, False])
def test_absent_clients_do_not_bring_the_others_into_more_rounds(seeded):
    present, times = [2, 5], 0
    for round in range(1500):
        generator = generator_for(0, round, -1, "cohort") if seeded else None
        drawn = draw_fixed(present, everybody=10, rate=0.3, generator=generator)
        assert set(drawn) <= set(present)
        times += 5 in drawn
    assert abs(times - 450) < 5 * math.sqrt(1500 * 0.3 * 0.7)


def test_a_fixed_draw_of_the_operating_system_is_never_the_same():
    drawn = {tuple(draw_fixed(range(200), everybody=200, rate=0.5, generator=None)) for _ in range(3)}
    assert len(drawn) == 3
    assert {len(one) for one in drawn} == {100}


def test_certain_coins_draw_all():
    assert draw_poisson([3, 5], 1.0, None) == [3, 5]
    assert draw_poisson([], 0.5, None) == []


def test_a_sum_is_divided_by_the_number_that_settings_give():
    assert mean_divisor("poisson", rate=1 / 60, clients=6000) == pytest.approx(100)
    assert mean_divisor("poisson", rate=0.3, clients=5) == pytest.approx(1.5)
    assert mean_divisor("fixed", rate=0.3, clients=5) == 2
    assert mean_divisor("fixed", rate=1e-6, clients=5) == 1


def test_what_is_no_rate_or_sampling_is_refused():
    with pytest.raises(ValueError, match=r"draw_poisson: rate must be in \(0, 1\], got 0"):
        draw_poisson([1], 0, None)
    with pytest.raises(ValueError, match="sampling must be one of poisson, fixed; got 'all'"):
        mean_divisor("all", rate=1, clients=1)
