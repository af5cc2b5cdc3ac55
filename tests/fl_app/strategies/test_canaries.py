"""Canaries in a federation: clients like others to the mechanism, they measure what it leaves of one."""

import logging
import math

import pytest
import torch
from federations import train
from scipy.stats import chi2

from fl_app.privacy import ClientLevel, NoiseShares
from fl_app.privacy.canaries import canary_direction, estimate_epsilon
from fl_app.privacy.gaussian_privacy import gaussian_epsilon
from fl_app.sketches import flatten
from fl_app.training import parameters

TINY = "model=mlp model.hidden=[8] clients=10 fraction=0.5 defense=fl_std dp=client dp.secure=false"
N = 3072 * 8 + 8 + 8 * 10 + 10
LEVEL = {"rounds": 1, "rate": 0.5, "clients": 10, "secure": False}


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def test_unseen_canaries_have_a_standard_normal_distance():
    change = canary_direction(7, 0, 1000)
    cosines = torch.stack([canary_direction(8, i, 1000) @ change for i in range(500)])
    assert abs(float(cosines.mean())) * math.sqrt(1000 * 500) < 4
    assert float(cosines.std()) * math.sqrt(1000) == pytest.approx(1, rel=0.15)


def test_the_epsilon_of_one_gaussian_release_is_estimated_from_a_single_one():
    size, count, sigma = 20_000, 200, 1.0
    generator = torch.Generator().manual_seed(0)
    directions = [canary_direction(0, i, size) for i in range(count)]
    released = sum(directions) + sigma * torch.randn(size, generator=generator, dtype=torch.float64)
    released = released / released.norm()
    found = estimate_epsilon(torch.stack([d @ released for d in directions]), size, 1e-5)
    exact = gaussian_epsilon(1 / sigma, 1e-5)
    assert found.low <= exact <= found.high
    assert found.low >= 0.7 * exact


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"canaries": 1}, "at least 2"),
        ({"canaries": -1}, "at least 2"),
        ({"canaries": 5, "secure": "auto"}, "simulations"),
        ({"canaries": 5, "secure": True}, "simulations"),
        ({"canaries": 5, "thresholds": True}, "secure aggregation"),
        ({"canaries": 5, "sampling": "fixed"}, "coins"),
    ],
)
def test_canaries_are_refused_where_they_would_measure_something_else(wrong, word):
    with pytest.raises(ValueError, match=word):
        ClientLevel(**(LEVEL | wrong))


def test_a_sum_with_canaries_carries_the_noise_that_is_accounted_for():
    sigma, clip = 1000.0, 0.01  # nobody's own part is seen beside it
    settings = f"{TINY} dtype=float64 rounds=1 dp.canaries=30 dp.noise_multiplier={sigma} dp.clip={clip}"
    federated, tap = train(settings)
    moved = flatten(federated.strategy.weights) - flatten(parameters(federated.model))
    low, high = chi2.ppf([1e-6, 1 - 1e-6], N)
    assert low < float((moved * 5).square().sum()) / (sigma * clip) ** 2 < high
    assert federated.strategy.records[0].clients == len(tap.exchanges) > 0


def test_canaries_take_part_by_their_coins_and_are_as_long_as_the_bound():
    faint = "dp.epsilon=null dp.noise_multiplier=1e-9 dp.clip=0.25 dp.canaries=40"
    federated, _ = train(f"{TINY} dtype=float64 rounds=4 {faint}")
    strategy = federated.strategy
    rounds = [strategy.canaries.draw(r) for r in range(1, 5)]
    assert len({tuple(drawn) for drawn in rounds}) == 4
    assert 50 < sum(map(len, rounds)) < 110  # 160 coins
    vector = strategy.canaries.upload(
        3, 1, sketch=strategy.sketch, like=strategy.weights, clip=0.25, shares=NoiseShares(1e-9, 5)
    )
    assert float(vector.norm()) == pytest.approx(0.25, rel=1e-6)
    # without noise, a canary's part of the change is seen: its rounds times its length
    change = flatten(strategy.weights) - flatten(parameters(federated.model))
    for canary in range(40):
        part = float(canary_direction(0, canary, N) @ change) * 5
        took_part = sum(canary in drawn for drawn in rounds)
        assert part == pytest.approx(0.25 * took_part, abs=0.25)
