import copy
import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
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
