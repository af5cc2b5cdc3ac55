"""Clients that take turns: who they are, what a budget makes of the noise, and what rounds cost."""

import math

import pytest
import torch

from fl_app.privacy import TakeTurns
from fl_app.privacy.gaussian_privacy import gaussian_distance, gaussian_epsilon

SETTINGS = {"rounds": 23, "rate": 0.2, "clients": 12, "secure": False}
COINS = torch.Generator()


def test_everybody_has_a_turn_in_every_separation_th_round_and_in_no_other():
    turns = TakeTurns(**SETTINGS)
    rounds = {client: [] for client in range(12)}
    for server_round in range(1, 24):
        for client in turns.draw(range(12), COINS, server_round):
            rounds[client].append(server_round)
    for client, mine in rounds.items():
        assert mine == list(range(client % 5 + 1, 24, 5))


def test_an_absent_client_changes_no_other_s_turn():
    turns = TakeTurns(**SETTINGS)
    without = [client for client in range(12) if client != 3]
    for server_round in range(1, 11):
        drawn = turns.draw(range(12), COINS, server_round)
        assert turns.draw(without, COINS, server_round) == [client for client in drawn if client != 3]
        assert turns.divisor == 12 / 5


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("rate", [1.0, 0.5, 1 / 3, 0.2, 0.1])
def test_the_budget_lasts_for_all_rounds_and_for_no_more(rate, epsilon):
    turns = TakeTurns(**SETTINGS | {"rate": rate, "epsilon": epsilon})
    account = turns.account()
    assert account.epsilon is None
    for _ in range(23):
        assert account.allows()
        account.charge([0])
    assert account.epsilon == pytest.approx(epsilon, rel=1e-3)
    assert account.epsilon <= epsilon
    assert not account.allows()


def test_with_everybody_in_every_round_the_noise_is_that_of_independent_releases():
    turns = TakeTurns(**SETTINGS | {"rate": 1.0, "epsilon": None, "noise_multiplier": 7.0})
    account, stream = turns.account(), turns.stream()
    for _ in range(4):
        account.charge([0])
        fresh = torch.randn(5, dtype=torch.float64)
        assert torch.equal(stream.advance(fresh), fresh)
    assert account.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(4) / 7, 1e-5), rel=1e-12)


def test_a_round_that_was_cut_short_costs_at_least_as_much_as_the_releases_that_there_may_have_been():
    turns = TakeTurns(**SETTINGS | {"epsilon": None, "noise_multiplier": 3.0})
    plain, cut = turns.account(), turns.account()
    for account in (plain, cut):
        account.charge([0])
    cut.charge_lost([1])
    assert cut.signal == pytest.approx(plain.signal + 1 / 9)
    assert cut.after() > plain.after()


def test_nothing_protects_from_the_server_that_adds_the_noise():
    account = TakeTurns(**SETTINGS).account()
    account.charge([4, 9])
    assert account.epsilon_server == math.inf
    assert account.server == {4: math.inf, 9: math.inf}


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"rate": 0.4}, "one over a whole number"),
        ({"rate": 0.05}, "20 turns need as many clients"),
        ({"thresholds": True}, "secure aggregation"),
        ({"epsilon": None}, "got neither"),
        ({"delta": 0.0}, "delta must be in"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be"),
        ({"epsilon": -1.0}, "epsilon must be"),
        ({"canaries": 1}, "at least 2"),
    ],
)
def test_settings_that_protect_nobody_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        TakeTurns(**SETTINGS | wrong)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 10.0])
def test_the_distance_of_an_epsilon_is_the_inverse_of_the_epsilon_of_a_distance(epsilon):
    distance = gaussian_distance(epsilon, 1e-5)
    assert gaussian_epsilon(distance, 1e-5) == pytest.approx(epsilon, rel=1e-8)
    assert gaussian_epsilon(distance, 1e-5) <= epsilon
