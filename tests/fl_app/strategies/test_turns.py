"""DP-FTRL in a federation: whose turn it is, the noise of the models, and what is refused."""

import logging
import math

import numpy as np
import pytest
import torch
from federations import train
from scipy.stats import chi2

from fl_app.config.build import server_parts
from fl_app.config.compose import ConfigError
from fl_app.config.trust import WHOLE
from fl_app.privacy.correlated_noise import NoiseStream
from fl_app.seeding import SERVER, generator_for
from fl_app.sketches import flatten
from fl_app.training import parameters
from fl_app.wire.messages import unpack_order

TINY = "model=mlp model.hidden=[8] clients=6 fraction=0.33333 dp=ftrl dp.secure=false"
N = 3072 * 8 + 8 + 8 * 10 + 10


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def test_clients_take_turns_and_the_model_moves_by_their_mean_and_the_noise_of_the_stream():
    federated, tap = train(
        f"{TINY} defense=fl_std rounds=4 dtype=float64 dp.noise_multiplier=1e4 dp.clip=0.01"
    )
    asked: dict[int, list[int]] = {}
    for sent, _ in tap.exchanges:
        order = unpack_order(sent).order
        asked.setdefault(order.round, []).append(order.client)
    assert asked == {1: [0, 3], 2: [1, 4], 3: [2, 5], 4: [0, 3]}
    stream, moved = NoiseStream(3), torch.zeros(N, dtype=torch.float64)
    for server_round in range(1, 5):
        seeded = generator_for(0, server_round, SERVER, "noise/0")
        moved += stream.advance(100 * torch.randn(N, generator=seeded, dtype=torch.float64)) / 2
    change = flatten(federated.strategy.weights) - flatten(parameters(federated.model))
    # what is left are the vectors of two clients a round, clipped to 0.01
    assert float((change - moved).norm()) <= 4 * 0.01 * (1 + 1e-6)
    assert float((change - moved).norm()) > 0


def test_the_noise_of_the_last_model_is_far_below_that_of_independent_rounds():
    federated, _ = train(f"{TINY} defense=fl_std rounds=6 dtype=float64 dp.noise_multiplier=1e4 dp.clip=0.01")
    change = flatten(federated.strategy.weights) - flatten(parameters(federated.model))
    matrix = np.eye(6) + 0.5 * np.eye(6, k=-1) + 0.375 * np.eye(6, k=-2)
    share = float(np.sum(np.linalg.inv(matrix).sum(0) ** 2))
    low, high = chi2.ppf([1e-6, 1 - 1e-6], N)
    assert low < float(change.square().sum()) / (share * (100 / 2) ** 2) < high
    assert share < 0.5 * 6


def test_rounds_are_charged_until_the_budget_is_spent_and_the_server_sees_everything():
    federated, _ = train(f"{TINY} defense=fl_top defense.share=0.02 rounds=4")
    records = federated.strategy.records
    spent = [record.epsilon for record in records]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(1.0, rel=1e-3)
    assert all(record.epsilon_server == math.inf for record in records)


def test_canaries_take_turns_too_and_measure_no_more_than_epsilon():
    federated, _ = train(f"{TINY} defense=fl_std rounds=3 dp.canaries=200 dp.epsilon=20")
    canaries = federated.strategy.canaries
    assert [len(canaries.draw(r)) for r in (1, 2, 3)] == [67, 67, 66]
    assert canaries.draw(4) == canaries.draw(1)


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        ("defense=fl_basic", "same coordinates in every round"),
        ("defense=fl_cs", "same coordinates in every round"),
        ("defense=fl_top defense.chosen_by=vote attack=none", "same coordinates in every round"),
        ("defense=fl_std secagg=on", "under secure aggregation"),
        ("defense=fl_std fraction=0.4", "one over a whole number"),
    ],
)
def test_runs_whose_noise_cannot_be_correlated_are_refused(overrides, word):
    with pytest.raises(ConfigError, match=word):
        server_parts(f"{TINY} {overrides}", WHOLE)
