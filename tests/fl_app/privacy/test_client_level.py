"""The client-level mechanism: the bound, the noise, and the sum over a cohort."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from fl_app.privacy import ClientLevel
from fl_app.privacy.client_level import clip_and_share
from fl_app.privacy.noise_shares import NoiseShares
from fl_app.privacy.normal_noise import replayable_noise, secure_noise
from fl_app.seeding import generator_for


def noise(client: int = 0):
    return replayable_noise(generator_for(0, 1, client, "noise"))


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40),
    st.sampled_from([1e-3, 0.7, 1.0, 3.3, 1e4]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_norm_never_exceeds_the_bound_and_the_direction_stays(values, clip, dtype):
    given_values = torch.tensor(values, dtype=dtype)
    sent = clip_and_share(given_values, clip=clip, multiplier=0, noise=noise())
    norm = math.sqrt(math.fsum(x * x for x in given_values.tolist()))
    if norm <= clip * (1 - 1e-9):
        assert sent.tolist() == given_values.tolist()
        return
    assert math.sqrt(math.fsum(x * x for x in sent.tolist())) <= clip * (1 + 1e-15)
    torch.testing.assert_close(sent * (norm / min(norm, clip)), given_values.double(), rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("source", ["replayable", "secure"])
def test_the_noise_has_the_deviation_of_the_share(source):
    n, clip, multiplier = 200_000, 0.3, 0.135
    draw = secure_noise() if source == "secure" else noise()
    sent = clip_and_share(torch.ones(n), clip=clip, multiplier=multiplier, noise=draw)
    added = (sent - clip / math.sqrt(n)) / (clip * multiplier)
    assert kstest(added.numpy(), "norm").pvalue > 1e-6


def test_the_sum_over_a_cohort_has_the_noise_of_the_whole():
    n, clients, clip = 50_000, 30, 2.0
    for shares in (NoiseShares(1.35, clients, 21), NoiseShares(1.35, clients)):
        total = sum(
            clip_and_share(torch.zeros(n), clip=clip, multiplier=shares.local, noise=noise(client))
            for client in range(clients)
        )
        assert float(total.std()) == pytest.approx(1.35 * clip, rel=5 / math.sqrt(2 * n))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_without_a_norm_becomes_noise_and_no_error(value):
    astray = clip_and_share(torch.tensor([1.0, value]), clip=1.0, multiplier=0.5, noise=noise())
    empty = clip_and_share(torch.zeros(2), clip=1.0, multiplier=0.5, noise=noise())
    assert torch.equal(astray, empty)


def test_values_whose_squares_overflow_are_clipped_in_double_precision():
    sent = clip_and_share(torch.tensor([3e30, 4e30]), clip=1.0, multiplier=0, noise=noise())
    torch.testing.assert_close(sent, torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=1e-6, atol=0)


def test_it_leaves_its_input_alone():
    values = torch.tensor([3.0, 4.0])
    clip_and_share(values, clip=1.0, multiplier=1.0, noise=noise())
    assert values.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clip": 0.0}, "clip must be"),
        ({"clip": math.nan}, "clip must be"),
        ({"multiplier": -1.0}, "multiplier must be"),
        ({"multiplier": math.inf}, "multiplier must be"),
        ({"values": torch.zeros(2, 2)}, "values must be a vector"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, words):
    arguments = {"values": torch.zeros(2), "clip": 1.0, "multiplier": 1.0, "noise": noise()} | change
    with pytest.raises(ValueError, match=f"clip_and_share: {words}"):
        clip_and_share(arguments.pop("values"), **arguments)


@pytest.mark.parametrize("accountant", ["rdp", "prv", "auto", "moments"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("sigma", [1e-12, 1e-3, 0.05, 1e4])
def test_hardly_any_noise_and_very_much_have_an_epsilon_too(accountant, sampling, sigma):
    level = ClientLevel(
        rounds=1, rate=0.5, clients=10, epsilon=None, noise_multiplier=sigma, accountant=accountant,
        sampling=sampling,
    )  # fmt: skip
    account = level.account()
    account.charge(rate=0.5, multiplier=sigma, cohort=[0], server_multiplier=sigma)
    assert (account.epsilon > 50) == (sigma < 1)
    assert account.epsilon <= account.epsilon_server


@pytest.mark.parametrize("epsilon", [710.0, 1e6])
def test_a_huge_budget_is_a_budget(epsilon):
    level = ClientLevel(rounds=10, rate=0.5, clients=10, epsilon=epsilon)
    assert 0 < level.sigma < 0.1
