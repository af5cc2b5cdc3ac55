"""What every transform promises, and what each of them computes."""

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.seeding import generator_for
from fl_app.transforms import (
    accumulate,
    add_gaussian,
    add_laplace,
    chain,
    clip_and_noise,
    clip_and_noise_on_support,
    drop_smallest,
    error_feedback,
    identity,
    keep_rank,
    keep_topk,
    perturb_outpost,
    prune_dual,
    residual_norm,
    round_bf16,
    round_fp16,
    round_int8,
    send_common_signs,
    skip_first,
    take_sign,
)
from fl_app.types import RoundContext

ALL = {
    "identity": identity(),
    "topk": keep_topk(0.2),
    "dual": prune_dual(0.05, 0.75),
    "feedback": error_feedback(prune_dual(0.05, 0.75)),
    "chain": chain(first=keep_topk(0.5), second=error_feedback(keep_topk(0.1))),
    "smallest": drop_smallest(0.5),
    "outpost": perturb_outpost(),
    "outpost with feedback": error_feedback(perturb_outpost()),
    "gaussian": add_gaussian(0.1),
    "laplace": add_laplace(0.1),
    "noise with feedback": error_feedback(add_gaussian(0.1)),
    "fp16": round_fp16(),
    "bf16": round_bf16(),
    "int8": round_int8(),
    "sign": take_sign(),
    "plain sign": take_sign(scale=False),
    "clip and noise": clip_and_noise(1.0, 0.1),
    "common signs": send_common_signs(first=0.5, output=0.5, biases=0.5, flip=0.1),
    "common signs with feedback": error_feedback(send_common_signs(), decay=0.9, jump=3.0),
    "rank": keep_rank(0.5),
    "noise on a support": clip_and_noise_on_support(0.3, 1.0, 0.1),
    "sums": accumulate(2),
    "silence": skip_first(1),
}
WEIGHTS = {"w": torch.linspace(-1, 1, 42).view(6, 7), "b": torch.linspace(0, 1, 10), "s": torch.ones(())}


@pytest.fixture(params=ALL.values(), ids=ALL.keys())
def transform(request):
    return request.param


@pytest.fixture
def ctx(make_context):
    return make_context(weights=WEIGHTS)


def updates(rounds: int) -> list[dict[str, torch.Tensor]]:
    return [{"w": torch.randn(6, 7), "b": torch.randn(10), "s": torch.randn(())} for _ in range(rounds)]


def test_it_leaves_its_inputs_alone(transform, ctx):
    (update,) = updates(1)
    state = transform.init(update)
    before = copy.deepcopy((update, state))
    transform.apply(update, state, ctx)
    torch.testing.assert_close((update, state), before, rtol=0, atol=0)


def test_it_keeps_names_shapes_and_types(transform, ctx):
    update = {"w": torch.randn(6, 7).double(), "b": torch.randn(10).double()}
    sent, _ = transform.apply(update, transform.init(update), ctx)
    assert list(sent) == list(update)
    assert all(sent[name].shape == update[name].shape for name in update)
    assert all(sent[name].dtype == torch.float64 for name in update)


def test_the_same_round_and_client_give_the_same_result(transform, make_context):
    (update,) = updates(1)
    first, _ = transform.apply(update, transform.init(update), make_context(3, 4, weights=WEIGHTS))
    again, _ = transform.apply(update, transform.init(update), make_context(3, 4, weights=WEIGHTS))
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def test_what_is_sent_is_the_entry_itself_or_plus_zero(ctx):
    for transform in (keep_topk(0.3), prune_dual(0.1, 0.4), drop_smallest(0.6)):
        (update,) = updates(1)
        sent, _ = transform.apply(update, {}, ctx)
        for name, tensor in sent.items():
            dropped = tensor != update[name]
            assert (tensor[dropped] == 0).all()
            assert not torch.signbit(tensor[dropped]).any()


# Few distinct values, so that ties are the rule; lengths from empty on.
entries = st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), min_size=0, max_size=60)
ctx_of_round_1 = RoundContext(1, 0, generator_for(0, 1, 0, "test"))


def ranking(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))


@given(entries, st.sampled_from([0.01, 0.2, 0.5, 0.7, 1.0]))
def test_topk_against_a_loop(values, k):
    sent, _ = keep_topk(k).apply({"w": torch.tensor(values)}, {}, ctx_of_round_1)
    count = min(len(values), max(1, math.floor(round(k * 100) * len(values) / 100)))
    kept = set(ranking(values)[:count])
    assert sent["w"].tolist() == [v if i in kept else 0.0 for i, v in enumerate(values)]


@given(entries, st.sampled_from([0.0, 0.01, 0.2, 0.5, 0.7, 0.99]))
def test_dropping_the_smallest_against_a_loop(values, rate):
    sent, _ = drop_smallest(rate).apply({"w": torch.tensor(values)}, {}, ctx_of_round_1)
    kept = set(ranking(values)[: len(values) - round(rate * 100) * len(values) // 100])
    assert sent["w"].tolist() == [v if i in kept else 0.0 for i, v in enumerate(values)]


@given(entries, st.sampled_from([(0.05, 0.75), (0.1, 0.7), (0.2, 0.6), (0.0, 0.5), (0.3, 0.0)]))
def test_dual_pruning_against_a_loop(values, fractions):
    k1, k2 = fractions
    n = len(values)
    sent, _ = prune_dual(k1, k2).apply({"w": torch.tensor(values)}, {}, ctx_of_round_1)
    top = -(-round(k1 * 100) * n // 100)
    bottom = round(k2 * 100) * n // 100
    kept = set(range(n)) if n < 4 else set(ranking(values)[top : n - bottom])
    assert sent["w"].tolist() == [v if i in kept else 0.0 for i, v in enumerate(values)]


def test_dual_pruning_withholds_the_entry_of_a_bias_that_names_the_label(ctx):
    bias = torch.full((10,), 0.1)
    bias[7] = -0.9
    sent, _ = prune_dual(0.05, 0.75).apply({"fc.weight": torch.randn(10, 8), "fc.bias": bias}, {}, ctx)
    assert sent["fc.bias"][7] == 0


def test_a_tiny_output_bias_is_withheld_and_other_tiny_tensors_travel_whole(ctx):
    update = {
        "scale": torch.tensor([1.0, 2.0]),
        "fc.weight": torch.randn(2, 8),
        "fc.bias": torch.tensor([3.0, -3.0]),
    }
    sent, _ = prune_dual(0.05, 0.75).apply(update, {}, ctx)
    assert sent["scale"].tolist() == [1.0, 2.0]
    assert sent["fc.bias"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["topk", "dual", "smallest", "outpost", "fp16", "bf16", "int8", "sign"])
def test_nan_is_refused(name, ctx):
    with pytest.raises(ValueError, match="NaN"):
        ALL[name].apply({"w": torch.tensor([1.0, float("nan"), 2.0, 3.0, 4.0])}, {}, ctx)


@pytest.mark.parametrize(
    "inner",
    [prune_dual(0.05, 0.75), drop_smallest(0.5), perturb_outpost(), add_gaussian(0.3), take_sign()],
    ids=["dual", "smallest", "outpost", "gaussian", "sign"],
)
def test_sent_plus_residual_is_the_running_sum(inner, make_context):
    transform = error_feedback(inner)
    rounds = [{"w": torch.randn(40, dtype=torch.float64)} for _ in range(30)]
    state, sent = transform.init(rounds[0]), torch.zeros(40, dtype=torch.float64)
    for number, update in enumerate(rounds, start=1):
        delta, state = transform.apply(update, state, make_context(number, weights=WEIGHTS))
        sent = sent + delta["w"]
    torch.testing.assert_close(sent + state["e"]["w"], sum(u["w"] for u in rounds), rtol=0, atol=1e-12)


def test_an_update_that_was_not_counted_goes_back_into_the_residual(make_context):
    transform = error_feedback(keep_topk(0.25))
    first, second = {"w": torch.tensor([4.0, 1.0, 2.0, 3.0])}, {"w": torch.zeros(4)}
    lost, state = transform.apply(first, transform.init(first), make_context(1))
    assert lost["w"].tolist() == [4.0, 0.0, 0.0, 0.0]
    again, state = transform.apply(second, state, make_context(2, uncounted=lost))
    assert again["w"].tolist() == [4.0, 0.0, 0.0, 0.0]
    assert state["e"]["w"].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_disabled_error_feedback_is_the_inner_transform():
    inner = keep_topk(0.2)
    assert error_feedback(inner, enabled=False) is inner


def test_residual_norm_finds_every_residual_in_a_tree(ctx):
    update = {"w": torch.tensor([3.0, 4.0, 12.0])}
    transform = chain(outer=error_feedback(keep_topk(0.4)), plain=identity())
    assert residual_norm(transform.init(update)) == 0
    _, state = transform.apply(update, transform.init(update), ctx)
    assert residual_norm(state) == pytest.approx(5.0)
    assert residual_norm(chain(plain=identity()).init(update)) is None


def test_a_chain_applies_its_steps_in_the_order_in_which_they_are_written(ctx):
    update = {"w": torch.tensor([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])}
    half, without_top = keep_topk(0.5), prune_dual(0.25, 0.0)
    dual_last = chain(a=half, b=without_top)
    topk_last = chain(b=without_top, a=half)
    sent, _ = dual_last.apply(update, dual_last.init(update), ctx)
    # half keeps 8 7 6 5; of the eight entries the two largest then go
    assert sent["w"].tolist() == [0.0, 0.0, 6.0, 5.0, 0.0, 0.0, 0.0, 0.0]
    sent, _ = topk_last.apply(update, topk_last.init(update), ctx)
    assert sent["w"].tolist() == [0.0, 0.0, 6.0, 5.0, 4.0, 3.0, 0.0, 0.0]
    empty, _ = chain().apply(update, {}, ctx)
    assert empty["w"].tolist() == update["w"].tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keep_topk(7), r"keep_topk: k must be in \(0, 1\], got 7"),
        (lambda: keep_topk(0), "keep_topk"),
        (lambda: prune_dual(0.5, 0.5), "k1 \\+ k2 < 1"),
        (lambda: prune_dual(-0.1, 0.5), "prune_dual"),
        (lambda: prune_dual(0.1, 0.5, min_size=-1), "min_size"),
        (lambda: drop_smallest(1), r"drop_smallest: rate must be in \[0, 1\), got 1"),
        (lambda: drop_smallest(float("nan")), r"drop_smallest: rate must be in \[0, 1\), got nan"),
        (lambda: drop_smallest(False), r"drop_smallest: rate must be in \[0, 1\), got False"),
        (lambda: perturb_outpost(prune=1.0), r"perturb_outpost: prune must be in \[0, 1\), got 1.0"),
        (lambda: perturb_outpost(noisy=1.5), r"perturb_outpost: noisy must be in \[0, 1\], got 1.5"),
        (lambda: perturb_outpost(noise=-1), "perturb_outpost: noise must be a finite number of at least 0"),
        (lambda: perturb_outpost(beta=math.inf), "perturb_outpost: beta must be a finite number"),
        (lambda: add_gaussian(-0.1), "add_gaussian: std must be a finite number of at least 0, got -0.1"),
        (lambda: add_gaussian(True), "add_gaussian: std .* got True"),
        (lambda: add_laplace("0.1"), "add_laplace: std .* got '0.1'"),
        (lambda: add_laplace(math.inf), "add_laplace: std .* got inf"),
        (lambda: take_sign(scale=1), "take_sign: scale must be true or false, got 1"),
        (lambda: clip_and_noise(0, 1), "clip_and_noise: clip must be a finite number above 0, got 0"),
        (lambda: clip_and_noise(1, math.nan), "clip_and_noise: std must be a finite number of at least 0"),
    ],
)
def test_bad_settings_are_refused_where_the_transform_is_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_chain_of_something_else_is_refused():
    with pytest.raises(TypeError, match="step 'x' must be a Transform, got str"):
        chain(x="topk")
