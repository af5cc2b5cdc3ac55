import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import nn

from attacks.labels import rlg, yin_labels
from attacks.score import score
from fl_app.transforms import drop_smallest, keep_topk, prune_dual, round_fp16, take_sign
from fl_app.types import Observation, RoundContext, Truth

CLASSES, FEATURES = 30, 24


def network(seed: int, *, dtype=torch.float64, bias=True, features=FEATURES) -> nn.Sequential:
    torch.manual_seed(seed)
    # tanh: signs alone tell nothing
    return nn.Sequential(
        nn.Linear(9, features), nn.Tanh(), nn.Linear(features, CLASSES, bias=bias), nn.Flatten()
    ).to(dtype)


def client(seed: int, labels: list[int], *, scale: float = 1.0, **more) -> Observation:
    settings = {name: more.pop(name) for name in ("dtype", "bias", "features") if name in more}
    model = network(seed, **settings)
    inputs = torch.randn(len(labels), 9, dtype=next(model.parameters()).dtype)
    loss = scale * F.cross_entropy(model(inputs), torch.tensor(labels))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    return Observation(model, update, **{"num_classes": CLASSES, "batch_size": len(labels)} | more)


def trained(seed: int, steps: list[list[int]], lr: float = 0.1, dtype=torch.float64) -> Observation:
    model = network(seed, dtype=dtype)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for labels in steps:
        optimiser.zero_grad()
        F.cross_entropy(model(torch.randn(len(labels), 9, dtype=dtype)), torch.tensor(labels)).backward()
        optimiser.step()
    update = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    model.load_state_dict(before)
    samples = sum(len(labels) for labels in steps)
    return Observation(
        model,
        update,
        local_steps=len(steps),
        local_batch_size=len(steps[0]),
        batch_size=samples,
        num_classes=CLASSES,
    )


distinct = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=12, unique=True)
any_labels = st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=12)
batches_of_one_size = st.integers(1, 4).flatmap(
    lambda size: st.lists(
        st.lists(st.integers(0, CLASSES - 1), min_size=size, max_size=size), min_size=1, max_size=3
    )
)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), labels=any_labels)
def test_no_label_of_an_exact_gradient_is_missed(seed, labels):
    found = rlg()(client(seed, labels))
    assert set(labels) <= set(found.labels.tolist())
    assert found.rank == len(labels)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), steps=batches_of_one_size)
def test_no_label_of_several_exact_steps_is_missed(seed, steps):
    obs = trained(seed, steps)
    # without the bias, whose signs would answer where no hyperplane does
    found = rlg()(dataclasses.replace(obs, update={"2.weight": obs.update["2.weight"]}))
    assert {label for labels in steps for label in labels} <= set(found.labels.tolist())


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), labels=distinct, granted=st.booleans())
def test_distinct_labels_are_found_exactly(seed, labels, granted):
    obs = client(seed, labels)
    found = rlg()(obs if granted else dataclasses.replace(obs, batch_size=None))
    assert sorted(found.labels.tolist()) == sorted(labels)
    assert found.rank == len(labels)
    assert not found.notes


@pytest.mark.parametrize("scale", [1e-13, 1.0, 1e9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_size_of_the_gradient_does_not_matter(scale, dtype):
    labels = [3, 8, 11, 29, 0]
    found = rlg()(client(1, labels, scale=scale, dtype=dtype))
    assert sorted(found.labels.tolist()) == sorted(labels)
    assert found.rank == 5


def test_signs_alone_would_not_do():
    obs = client(1, [3, 8, 11], batch_size=None)
    assert len(yin_labels()(obs).labels) > 20
    assert sorted(rlg()(obs).labels.tolist()) == [3, 8, 11]


@pytest.mark.parametrize("steps", [[[4], [7], [21]], [[4, 7], [21, 2]], [[4, 7, 9]]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_step_and_many_of_one_or_more_samples(steps, dtype):
    found = rlg()(trained(0, steps, dtype=dtype))
    labels = sorted(label for step in steps for label in step)
    assert set(labels) <= set(found.labels.tolist())
    assert found.rank == len(labels)


def test_a_layer_of_features_by_classes_is_turned_round():
    obs = client(2, [1, 5])
    turned = dataclasses.replace(obs, update={"2.weight": obs.update["2.weight"].T})
    assert sorted(rlg(weight="2.weight")(turned).labels.tolist()) == [1, 5]


def test_the_bias_is_not_needed():
    assert sorted(rlg()(client(2, [1, 5, 6], bias=False)).labels.tolist()) == [1, 5, 6]


def test_the_rank_may_be_given():
    labels = [3, 8, 11, 29]
    found = rlg(rank=4)(client(1, labels))
    assert sorted(found.labels.tolist()) == sorted(labels)
    assert rlg(rank=3)(client(1, labels)).rank == 4  # the rank of the gradient, not the given one
    assert any("rank 4 was given" in note for note in found.notes)
    for wrong in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="rlg: rank must be"):
            rlg(rank=wrong)


def test_the_set_alone_may_be_asked_for():
    obs = client(4, [3, 3, 3, 8, 9, 9])
    found, alone = rlg()(obs), rlg(counts=False)(obs)
    assert found.counts is not None
    assert alone.counts is None
    assert alone.labels.tolist() == found.labels.tolist()


def test_repeats_are_counted():
    obs = client(4, [3, 3, 3, 8, 9, 9])
    found = rlg()(obs)
    assert dict(zip(found.labels.tolist(), found.counts.tolist(), strict=True)) == {3: 3, 8: 1, 9: 2}
    truth = Truth(torch.zeros(6, 1, 1, 1), torch.tensor([9, 3, 8, 3, 9, 3]))
    assert score(found, truth)["labels"]["exact"] == 1.0


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_more_samples_than_classes_are_reported_and_answered_by_signs(granted, bias):
    labels = (list(range(20)) * 3)[:50]
    obs = client(0, labels, features=64, bias=bias)
    found = rlg()(obs if granted else dataclasses.replace(obs, batch_size=None))
    assert any("premise failed" in note for note in found.notes)
    assert found.rank == CLASSES - 1
    by = "signs of the bias" if bias else "signs of the rows"
    assert found.rule == by
    assert any(by in note for note in found.notes)
    if bias:
        assert sorted(found.labels.tolist()) == list(range(20))


@pytest.mark.parametrize(("activation", "by"), [(nn.ReLU, "the rows"), (nn.Tanh, "the bias")])
def test_signs_of_rows_are_read_where_the_features_are_above_zero(activation, by):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 40), activation(), nn.Linear(40, 10))
    labels = torch.tensor([0] * 12 + [1] * 10 + [2, 3])
    loss = F.cross_entropy(model(torch.randn(24, 3, 4, 4)), labels)
    slopes = torch.autograd.grad(loss, list(model.parameters()))
    update = dict(zip(dict(model.named_parameters()), slopes, strict=True))
    before = copy.deepcopy(model.state_dict())
    obs = Observation(model, update, num_classes=10, batch_size=24, input_shape=(3, 4, 4))
    found = rlg()(obs)
    assert any(f"labels by the signs of {by}" in note for note in found.notes)
    # on average the model expects 2.4 samples of every class: the bias of a class with one is positive
    assert sorted(found.labels.tolist()) == ([0, 1, 2, 3] if by == "the rows" else [0, 1])
    torch.testing.assert_close(model.state_dict(), before)
    assert not model[3]._forward_pre_hooks


def test_more_samples_than_features_are_reported():
    found = rlg()(client(0, [1, 2, 3, 4, 5, 6], features=4))
    assert any("6 samples have only 4 features" in note for note in found.notes)
    assert sorted(found.labels.tolist()) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "transform",
    [
        take_sign(),
        drop_smallest(0.5),
        drop_smallest(0.9),
        keep_topk(0.05),
        prune_dual(0.3, 0.1),
        round_fp16(),
    ],
)
def test_defended_updates_give_an_answer_that_says_what_was_assumed(transform):
    obs = client(3, [2, 4, 6, 8], dtype=torch.float32)
    ctx = RoundContext(1, 0, torch.Generator().manual_seed(0))
    update, _ = transform.apply(obs.update, transform.init(obs.update), ctx)
    found = rlg()(dataclasses.replace(obs, update=update))
    assert len(found.labels) > 0
    assert found.notes
    assert len(found.labels) == len(set(found.labels.tolist()))


def test_only_rows_that_survived_are_judged():
    obs = client(5, [2, 4])
    weight = obs.update["2.weight"].clone()
    weight[10:20] = 0
    found = rlg()(dataclasses.replace(obs, update={"2.weight": weight}))
    assert sorted(found.labels.tolist()) == [2, 4]
    assert any("rows of 10 classes" in note for note in found.notes)


def test_an_empty_layer_leaves_a_guess_that_is_called_one():
    obs = client(5, [2, 4])
    empty = {"2.weight": torch.zeros_like(obs.update["2.weight"])}
    found = rlg()(dataclasses.replace(obs, update=empty))
    assert any("guess" in note for note in found.notes)


def test_a_gradient_that_is_not_finite_is_refused():
    obs = client(5, [2, 4])
    obs.update["2.weight"][0, 0] = np.nan
    with pytest.raises(ValueError, match=r"rlg: 2.weight must be finite"):
        rlg()(obs)


def test_features_that_are_all_the_same_leave_the_signs():
    # rank 1: the sum of all rows has several negative entries, and no hyperplane parts them
    obs = client(6, [2, 4, 9])
    rows = obs.update["2.bias"][:, None] * torch.rand(FEATURES, dtype=torch.float64)
    found = rlg()(dataclasses.replace(obs, update={"2.weight": rows}))
    assert found.rank == 1
    assert sorted(found.labels.tolist()) == [2, 4, 9]
    assert any("no class can be separated" in note for note in found.notes)
    assert found.rule == "signs of the rows"


@pytest.mark.parametrize("scale_rows", [True, False])
def test_without_a_fallback_rank_one_and_three_labels_have_no_answer(scale_rows):
    # points on a line: three are below 0, and no sign of r leaves one of them alone there
    obs = client(6, [2, 4, 9])
    rows = obs.update["2.bias"][:, None] * torch.rand(FEATURES, dtype=torch.float64)
    seen = dataclasses.replace(obs, update={"2.weight": rows, "2.bias": obs.update["2.bias"]})
    found = rlg(fallback=False, scale_rows=scale_rows)(seen)
    assert (found.labels.tolist(), found.counts, found.rank, found.rule) == ([], None, 1, "none")
    answered = rlg(scale_rows=scale_rows)(seen)
    assert (sorted(answered.labels.tolist()), answered.rule) == ([2, 4, 9], "signs of the bias")


def test_without_a_fallback_an_empty_layer_has_no_answer():
    obs = client(5, [2, 4])
    empty = {"2.weight": torch.zeros_like(obs.update["2.weight"])}
    found = rlg(fallback=False)(dataclasses.replace(obs, update=empty))
    assert (found.labels.tolist(), found.rank, found.rule) == ([], 0, "none")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31), labels=distinct)
def test_rows_as_they_are_and_scaled_tell_the_same_of_an_exact_gradient(seed, labels):
    obs = client(seed, labels)
    scaled, plain = (rlg(scale_rows=scale)(obs) for scale in (True, False))
    assert sorted(plain.labels.tolist()) == sorted(scaled.labels.tolist()) == sorted(labels)
    assert (plain.rank, plain.rule) == (scaled.rank, "hyperplanes")


def margin_alone(points: np.ndarray, alone: int) -> float:
    """Return the largest margin of a hyperplane through 0 below which one unit vector lies alone."""
    units = points / np.linalg.norm(points, axis=1, keepdims=True)
    signs = np.where(np.arange(len(units)) == alone, 1.0, -1.0)
    width = units.shape[1]
    found = linprog(
        np.append(np.zeros(width), -1.0),
        A_ub=np.hstack([signs[:, None] * units, np.ones((len(units), 1))]),
        b_ub=np.zeros(len(units)),
        bounds=[(-1, 1)] * width + [(None, 1)],
    )
    return -found.fun


@pytest.mark.parametrize("transform", [take_sign(), drop_smallest(0.5), drop_smallest(0.9)])
@pytest.mark.parametrize("seed", range(4))
def test_on_its_own_it_names_the_classes_that_algorithm_1_names(seed, transform):
    labels = torch.randperm(CLASSES, generator=torch.Generator().manual_seed(seed))[:5].tolist()
    obs = client(seed, labels, dtype=torch.float32)
    ctx = RoundContext(1, 0, torch.Generator().manual_seed(0))
    update, _ = transform.apply(obs.update, transform.init(obs.update), ctx)
    found = rlg(rank=5, fallback=False, scale_rows=False)(dataclasses.replace(obs, update=update))
    rows = update["2.weight"].double().numpy()
    left = np.flatnonzero(rows.any(axis=1))
    points = np.linalg.svd(rows[left].T, full_matrices=False)[2][:5].T
    margins = np.array([margin_alone(points, i) for i in range(len(left))])
    assert not ((margins > 1e-9) & (margins < 1e-5)).any()  # none is too close to judge
    assert sorted(found.labels.tolist()) == left[margins > 1e-5].tolist()
    assert found.rule == ("hyperplanes" if len(found.labels) else "none")


def test_only_the_longest_points_are_judged():
    labels = [3, 8, 11, 29]
    obs = client(1, labels)
    assert sorted(rlg(longest=12)(obs).labels.tolist()) == sorted(labels)  # labels have the longest
    assert set(rlg(longest=3, scale_rows=False)(obs).labels.tolist()) < set(labels)
    assert sorted(rlg(longest=1000)(obs).labels.tolist()) == sorted(labels)
    with pytest.raises(ValueError, match="rlg: longest must be"):
        rlg(longest=0)


def test_without_a_fallback_too_large_a_batch_names_every_class():
    # 29 dimensions for 30 points whose positive sum vanishes: each can be separated, label or not
    obs = client(0, (list(range(20)) * 3)[:50], features=64)
    found = rlg(fallback=False)(obs)
    assert sorted(found.labels.tolist()) == list(range(CLASSES))
    assert found.rule == "hyperplanes"
    assert any("premise failed" in note for note in found.notes)
