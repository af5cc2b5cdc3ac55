"""Additive noise: its moments, its shape, and that no two draws are related."""

import math

import pytest
import torch

from fl_app.transforms import add_gaussian, add_laplace

N = 200_000
KURTOSIS = {"gaussian": 3.0, "laplace": 6.0}
MAKE = {"gaussian": add_gaussian, "laplace": add_laplace}


@pytest.fixture(params=["gaussian", "laplace"])
def kind(request):
    return request.param


def noise_of(transform, ctx, n=N, dtype=torch.float32):
    sent, _ = transform.apply({"w": torch.zeros(n, dtype=dtype)}, {}, ctx)
    return sent["w"]


@pytest.mark.parametrize("std", [1e-2, 3.0])
def test_the_standard_deviation_is_the_one_asked_for(kind, std, ctx):
    noise = noise_of(MAKE[kind](std), ctx).double() / std
    assert abs(float(noise.mean())) < 5 / math.sqrt(N)
    # the sample variance has a variance of (kurtosis - 1) / n
    assert abs(float(noise.square().mean()) - 1) < 5 * math.sqrt((KURTOSIS[kind] - 1) / N)


def test_the_tails_are_those_of_the_distribution(kind, ctx):
    noise = noise_of(MAKE[kind](2.0), ctx).double()
    assert float((noise**4).mean() / noise.square().mean() ** 2) == pytest.approx(KURTOSIS[kind], rel=0.08)
    assert abs(float((noise**3).mean() / 8)) < 0.15


def test_the_share_within_one_standard_deviation(kind, ctx):
    inside = {"gaussian": math.erf(1 / math.sqrt(2)), "laplace": 1 - math.exp(-math.sqrt(2))}[kind]
    share = float((noise_of(MAKE[kind](0.5), ctx).abs() < 0.5).double().mean())
    assert abs(share - inside) < 5 * math.sqrt(inside * (1 - inside) / N)


def test_the_noise_is_added_to_the_update(kind, make_context):
    update = {"w": torch.randn(50, 20, dtype=torch.float64)}
    transform = MAKE[kind](0.1)
    sent, _ = transform.apply(update, {}, make_context())
    noise = noise_of(transform, make_context(), 1000, torch.float64).view(50, 20)
    assert torch.equal(sent["w"], update["w"] + noise)
    assert (sent["w"] != update["w"]).all()


def test_clients_rounds_and_tensors_get_unrelated_noise(kind, make_context):
    transform = MAKE[kind](1.0)
    drawn = [
        noise_of(transform, make_context(round, client)) for round, client in [(1, 0), (1, 1), (2, 0), (2, 1)]
    ]
    sent, _ = transform.apply({"a": torch.zeros(N), "b": torch.zeros(N)}, {}, make_context(3, 3))
    correlation = torch.corrcoef(torch.stack([*drawn, sent["a"], sent["b"]]).double())
    assert (correlation - torch.eye(6, dtype=torch.float64)).abs().max() < 5 / math.sqrt(N)


def test_neighbouring_entries_are_unrelated(kind, ctx):
    noise = noise_of(MAKE[kind](1.0), ctx).double()
    assert abs(float((noise[1:] * noise[:-1]).mean())) < 5 / math.sqrt(N)


def test_the_same_round_and_client_give_the_same_bytes(kind, make_context):
    first, again = (noise_of(MAKE[kind](1.0), make_context(5, 7)) for _ in range(2))
    assert first.numpy().tobytes() == again.numpy().tobytes()


def test_no_noise_is_no_change_in_any_bit(kind, ctx):
    update = {"w": torch.tensor([0.0, -0.0, 1e-45, -3.5])}
    sent, _ = MAKE[kind](0).apply(update, {}, ctx)
    assert sent["w"].numpy().tobytes() == update["w"].numpy().tobytes()
