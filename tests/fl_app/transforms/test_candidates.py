"""Low rank, noise on a support, and messages held back: laws and oracles."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.seeding import generator_for
from fl_app.transforms import (
    accumulate,
    clip_and_noise_on_support,
    error_feedback,
    keep_rank,
    skip_first,
)
from fl_app.types import RoundContext


def ctx(round=1, **more):
    return RoundContext(round, 0, generator_for(0, round, 0, "test"), **more)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 8), st.floats(0.05, 1.0), st.integers(0, 99))
def test_the_rank_is_the_least_that_holds_the_energy(rows, columns, energy, seed):
    matrix = torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, columns)))
    (sent,) = keep_rank(energy).apply({"w": matrix}, {}, ctx())[0].values()
    values = np.linalg.svd(matrix.numpy(), compute_uv=False) ** 2
    rank = next(
        r for r in range(1, len(values) + 1) if values[:r].sum() >= energy * values.sum() * (1 - 1e-12)
    )
    assert np.linalg.matrix_rank(sent.numpy(), tol=1e-9) == rank
    # no matrix of this rank is nearer (Eckart and Young)
    assert float((matrix - sent).square().sum()) == pytest.approx(values[rank:].sum(), abs=1e-9)


def test_a_convolution_is_a_matrix_of_filters_and_vectors_travel_whole():
    update = {"w": torch.randn(6, 3, 5, 5), "b": torch.randn(6)}
    sent, _ = keep_rank(1.0, most=2).apply(update, {}, ctx())
    assert torch.linalg.matrix_rank(sent["w"].flatten(1)) == 2
    assert torch.equal(sent["b"], update["b"])
    (trace,) = keep_rank().traces
    assert trace.zeros_sent  # a zero of a low-rank matrix is a value


def test_what_is_sent_on_a_support_has_the_clipped_norm_and_the_noise():
    update = {"w": torch.randn(400, 500), "b": torch.randn(500)}
    quiet, _ = clip_and_noise_on_support(0.1, clip=2.0, std=0.0).apply(update, {}, ctx())
    assert sum(float(t.double().square().sum()) for t in quiet.values()) == pytest.approx(4.0, rel=1e-5)
    noisy, _ = clip_and_noise_on_support(0.1, clip=2.0, std=0.3).apply(update, {}, ctx())
    away = torch.cat([(noisy[name] - quiet[name])[quiet[name] != 0] for name in update])
    assert float(away.std()) == pytest.approx(0.3, rel=0.02)
    assert all((noisy[name][quiet[name] == 0] == 0).all() for name in update)


def test_a_private_release_on_a_support_refuses_feedback():
    with pytest.raises(ValueError, match="private release"):
        error_feedback(clip_and_noise_on_support(0.1, 1.0, 0.1))


def test_sums_wait_for_their_floor_and_lose_nothing():
    transform = accumulate(64)
    updates = [{"w": torch.full((3,), float(number))} for number in range(1, 8)]
    state, sent = transform.init(updates[0]), []
    for number, update in enumerate(updates, 1):
        out, state = transform.apply(update, state, ctx(number, samples=32))
        sent.append(out["w"].tolist()[0])
    assert sent == [0, 3, 0, 7, 0, 11, 0]
    assert state["sum"]["w"].tolist() == [7.0] * 3


def test_a_sum_that_was_not_counted_is_sent_again():
    transform = accumulate(2)
    one = {"w": torch.ones(1)}
    state = transform.init(one)
    _, state = transform.apply(one, state, ctx(1))
    lost, state = transform.apply(one, state, ctx(2))
    assert lost["w"].tolist() == [2.0]
    _, state = transform.apply(one, state, ctx(3, uncounted=lost))
    again, _ = transform.apply(one, state, ctx(4))
    assert again["w"].tolist() == [4.0]


def test_the_first_rounds_are_silent():
    transform = skip_first(2)
    update = {"w": torch.ones(2)}
    sent = [transform.apply(update, {}, ctx(number))[0]["w"].tolist() for number in (1, 2, 3)]
    assert sent == [[0, 0], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    "make",
    [
        lambda: keep_rank(0),
        lambda: keep_rank(1.1),
        lambda: keep_rank(most=0),
        lambda: clip_and_noise_on_support(0.1, 0, 1),
        lambda: clip_and_noise_on_support(0, 1, 1),
        lambda: clip_and_noise_on_support(2, 1, 1),
        lambda: clip_and_noise_on_support(0.1, 1, math.nan),
        lambda: accumulate(0),
        lambda: accumulate(True),
        lambda: skip_first(0.5),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(ValueError, match=r"keep_rank|clip_and_noise_on_support|accumulate|skip_first"):
        make()
