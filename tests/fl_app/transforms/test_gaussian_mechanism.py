"""The Gaussian mechanism: one norm for the whole update, then noise, and never a residual."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.seeding import generator_for
from fl_app.transforms import chain, clip_and_noise, error_feedback, identity, keep_topk
from fl_app.types import RoundContext

CTX = RoundContext(1, 0, generator_for(0, 1, 0, "test"))


def joint_norm(update) -> float:
    return math.sqrt(math.fsum(x * x for tensor in update.values() for x in tensor.flatten().tolist()))


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=40),
    st.sampled_from([1e-3, 0.7, 1.0, 3.3, 1e4]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_norm_never_exceeds_the_bound_and_the_direction_stays(values, clip, dtype):
    update = {"a": torch.tensor(values[:1], dtype=dtype), "b": torch.tensor(values[1:], dtype=dtype)}
    sent, _ = clip_and_noise(clip, 0).apply(update, {}, CTX)
    norm = joint_norm(update)
    if norm <= clip * (1 - 1e-9):
        assert all(torch.equal(sent[name], update[name]) for name in update)
        return
    assert joint_norm(sent) <= clip
    assert joint_norm(sent) >= clip * (1 - 1e-5)
    for name in update:
        torch.testing.assert_close(sent[name] * (norm / clip), update[name], rtol=1e-5, atol=norm * 1e-12)


def test_the_bound_holds_for_many_entries_too():
    for seed in range(20):
        g = torch.randn(100_000, generator=torch.Generator().manual_seed(seed))
        sent, _ = clip_and_noise(1.0, 0).apply({"w": g}, {}, CTX)
        assert 1 - 1e-5 < float(sent["w"].double().norm()) <= 1


def test_the_norm_is_that_of_all_tensors_together():
    update = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([[4.0]])}
    sent, _ = clip_and_noise(1.0, 0).apply(update, {}, CTX)
    torch.testing.assert_close(sent["a"], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(sent["b"], torch.tensor([[0.8]]))
    whole, _ = clip_and_noise(5.0, 0).apply(update, {}, CTX)
    assert torch.equal(whole["a"], update["a"])
    assert torch.equal(whole["b"], update["b"])


def test_the_noise_has_the_absolute_standard_deviation_asked_for_whatever_the_bound(make_context):
    n = 200_000
    for clip in (0.1, 10.0):
        update = {"a": torch.ones(n), "b": torch.ones(n)}
        transform = clip_and_noise(clip, 0.25)
        noisy, _ = transform.apply(update, {}, make_context(2, 3))
        clipped, _ = clip_and_noise(clip, 0).apply(update, {}, make_context(2, 3))
        noise = torch.stack([noisy[name] - clipped[name] for name in update]).double()
        assert noise.mean(dim=1).abs().max() < 5 * 0.25 / math.sqrt(n)
        assert (noise.var(dim=1) / 0.25**2 - 1).abs().max() < 5 * math.sqrt(2 / n)
        assert abs(float(torch.corrcoef(noise)[0, 1])) < 5 / math.sqrt(n)


def test_rounds_and_clients_get_unrelated_noise_and_the_same_ones_the_same_bytes(make_context):
    n = 200_000
    transform, update = clip_and_noise(1.0, 1.0), {"w": torch.zeros(n)}
    places = [(1, 0), (1, 1), (2, 0)]
    drawn = [transform.apply(update, {}, make_context(*place))[0]["w"] for place in places]
    correlation = torch.corrcoef(torch.stack(drawn).double())
    assert (correlation - torch.eye(3, dtype=torch.float64)).abs().max() < 5 / math.sqrt(n)
    again, _ = transform.apply(update, {}, make_context(1, 0))
    assert torch.equal(again["w"], drawn[0])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_update_without_a_norm_becomes_noise_and_no_error(value, make_context):
    transform = clip_and_noise(1.0, 0.5)
    astray, _ = transform.apply({"a": torch.tensor([1.0, value]), "b": torch.ones(2)}, {}, make_context())
    empty, _ = transform.apply({"a": torch.zeros(2), "b": torch.zeros(2)}, {}, make_context())
    assert all(torch.equal(astray[name], empty[name]) for name in astray)


@pytest.mark.parametrize(
    "inner",
    [
        clip_and_noise(1.0, 1.0),
        chain(a=keep_topk(0.5), b=clip_and_noise(1.0, 1.0)),
        chain(outer=chain(b=clip_and_noise(1.0, 1.0)), last=identity()),
        error_feedback(clip_and_noise(1.0, 1.0), enabled=False),
    ],
    ids=["alone", "in a chain", "in a chain in a chain", "in a disabled feedback"],
)
def test_error_feedback_refuses_a_private_release_wherever_it_sits(inner):
    with pytest.raises(ValueError, match=r"error_feedback: inner .* private release \(clip_and_noise\)"):
        error_feedback(inner)
    assert error_feedback(inner, enabled=False) is inner


def test_what_is_no_private_release_is_not_marked_as_one():
    assert clip_and_noise(1.0, 1.0).released
    assert not chain(a=keep_topk(0.5), b=error_feedback(keep_topk(0.1))).released
    assert not chain().released
