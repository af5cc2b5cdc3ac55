"""Observations made from gradients and from weights, and the check of their sign and size."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attacks.optimisation import inverting_gradients
from fl_app.transforms import (
    Transform,
    add_gaussian,
    add_laplace,
    drop_smallest,
    identity,
    keep_topk,
    prune_dual,
    round_bf16,
    round_fp16,
    round_int8,
    take_sign,
)
from fl_app.types import Known, Observation, RoundContext, Threat

CLASSES = 5
TRANSFORMS: list[Transform] = [
    identity(),
    keep_topk(0.2),
    drop_smallest(0.5),
    prune_dual(0.05, 0.75),
    *(add_gaussian(scale) for scale in (1e-5, 1e-3, 0.1)),
    add_laplace(0.01),
    round_fp16(),
    round_bf16(),
    round_int8(),
    take_sign(),
]


def network(classes: int = CLASSES, *, bias: bool = True, activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), activation(), nn.Linear(32, classes, bias=bias))


def gradient(model: nn.Module, inputs: Tensor, labels: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters())))


def batch(size: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    return torch.rand(size, 3, 4, 4), torch.randint(classes, (size,))


def by_name(model: nn.Module, tensors: list[Tensor]) -> dict[str, Tensor]:
    return dict(zip(dict(model.named_parameters()), tensors, strict=True))


def steps(model: nn.Module, inputs: Tensor, labels: Tensor, *, lr: float, count: int) -> dict[str, Tensor]:
    """Return the state after ``count`` steps of torch's own SGD; the model ends as it began."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimiser = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(count):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    return after


def test_gradients_come_by_name_in_order_or_as_arrays():
    model = network()
    found = gradient(model, *batch(1))
    arrays = {name: tensor.numpy() for name, tensor in by_name(model, found).items()}
    for given_as in (found, by_name(model, found), arrays, tuple(found)):
        update = Observation.from_gradient(model, given_as).update
        assert list(update) == list(dict(model.named_parameters()))
        assert all(torch.equal(a, b) for a, b in zip(update.values(), found, strict=True))


def test_gradients_are_taken_of_the_parameters_that_are_trained():
    model = network()
    model[1].requires_grad_(False)
    assert list(Observation.from_gradient(model, [torch.zeros(5, 32), torch.zeros(5)]).update) == [
        "3.weight",
        "3.bias",
    ]
    frozen = network().requires_grad_(False)
    assert (
        len(Observation.from_gradient(frozen, [torch.zeros_like(p) for p in frozen.parameters()]).update) == 4
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda g: list(g.values())[:-1], ["4", "3"]),
        (lambda g: {**g, "other": torch.zeros(1)}, ["other"]),
        (lambda g: {k: v for k, v in g.items() if k != "3.bias"}, ["3.bias"]),
        (lambda g: {**g, "1.weight": g["1.weight"].T}, ["1.weight", "(32, 48)", "(48, 32)"]),
    ],
)
def test_names_and_shapes_that_do_not_fit_are_named(change, words):
    model = network()
    wrong = change(by_name(model, gradient(model, *batch(1))))
    with pytest.raises(ValueError) as error:
        Observation.from_gradient(model, wrong)
    assert all(word in str(error.value) for word in words)


def test_weights_make_the_update_the_start_and_the_buffers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, CLASSES))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = steps(model, *batch(8), lr=0.1, count=2)
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, CLASSES))
    own = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    seen = Observation.from_weights(other, before, after, lr=0.1, local_steps=2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in seen.model.state_dict().items())
    assert all(torch.equal(tensor, own[name]) for name, tensor in other.state_dict().items())
    for name, tensor in seen.update.items():
        torch.testing.assert_close(tensor, after[name] - before[name])
    assert seen.buffers is not None
    assert torch.equal(seen.buffers["1.running_mean"], after["1.running_mean"])
    assert (seen.lr, seen.local_steps) == (0.1, 2)


def test_weights_of_a_frozen_layer_are_no_part_of_the_update():
    model = network()
    after = steps(model, *batch(2), lr=0.1, count=1)
    model[1].requires_grad_(False)
    seen = Observation.from_weights(model, model.state_dict(), after, lr=0.1, local_steps=1)
    assert list(seen.update) == ["3.weight", "3.bias"]


@pytest.mark.parametrize("more", [{"lr": 0.0, "local_steps": 1}, {"lr": 0.1, "local_steps": 0}])
def test_weights_need_a_rate_and_steps(more):
    model = network()
    with pytest.raises(ValueError, match=r"lr > 0 and local_steps >= 1"):
        Observation.from_weights(model, model.state_dict(), model.state_dict(), **more)


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_weight_difference_is_not_taken_for_a_gradient(granted, bias):
    for seed in range(20):
        torch.manual_seed(seed)
        model = network(10, bias=bias)
        inputs, labels = batch(1 + seed % 4, 10)
        known = {"labels": labels} if granted else {"batch_size": len(labels)}
        after = steps(model, inputs, labels, lr=0.01, count=1)
        difference = {name: after[name] - p.detach() for name, p in model.named_parameters()}
        with pytest.raises(ValueError, match="from_weights"):
            Observation.from_gradient(model, difference, **known)
        Observation.from_gradient(model, difference, check=False, **known)
        weights = dict(model.named_parameters()), after
        assert Observation.from_weights(model, *weights, lr=0.01, local_steps=1, **known).lr == 0.01
        with pytest.raises(ValueError, match="swapped"):
            Observation.from_weights(model, *reversed(weights), lr=0.01, local_steps=1, **known)


@pytest.mark.parametrize("factor", [1e-4, 0.1, 0.5, 2.0, 1000.0])
@pytest.mark.parametrize("classes", [3, 10])
def test_the_factor_of_one_samples_gradient_is_found(factor, classes):
    torch.manual_seed(classes)
    model = network(classes)
    inputs, labels = batch(1, classes)
    true = gradient(model, inputs, labels)
    scaled = [factor * tensor for tensor in true]
    found = re.escape(f"{factor:.3g} times")
    with pytest.raises(ValueError, match=found):
        Observation.from_gradient(model, scaled)
    Observation.from_gradient(model, scaled, check=False)
    Observation.from_gradient(model, true)
    difference = [-0.1 * tensor for tensor in true]
    Observation.from_delta(model, difference, lr=0.1, local_steps=1)
    with pytest.raises(ValueError, match=r"lr=0\.1, not 0\.02"):
        Observation.from_delta(model, difference, lr=0.02, local_steps=1)
    Observation.from_delta(model, difference, lr=0.02, local_steps=5)


def test_several_samples_bound_the_size_of_a_mean():
    torch.manual_seed(0)
    model = network(10)
    true = gradient(model, *batch(8, 10))
    Observation.from_gradient(model, true, batch_size=8)
    with pytest.raises(ValueError, match="the loss is a sum"):
        Observation.from_gradient(model, [8 * tensor for tensor in true], batch_size=8)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    classes=st.sampled_from([2, 3, 10, 100]),
    size=st.sampled_from([1, 2, 8, 64]),
    bias=st.booleans(),
    activation=st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity]),
    trained=st.sampled_from([0, 20]),
    transform=st.sampled_from(TRANSFORMS),
    granted=st.booleans(),
)
def test_genuine_gradients_are_never_doubted(
    seed, classes, size, bias, activation, trained, transform, granted
):
    torch.manual_seed(seed)
    model = network(classes, bias=bias, activation=activation)
    inputs, labels = batch(size, classes)
    model.load_state_dict(steps(model, *batch(64, classes), lr=0.5, count=trained))
    raw = by_name(model, gradient(model, inputs, labels))
    context = RoundContext(1, 0, torch.Generator().manual_seed(seed))
    update, _ = transform.apply(raw, transform.init(raw), context)
    Observation.from_gradient(model, update, batch_size=size, labels=labels if granted else None)
    after = steps(model, inputs, labels, lr=0.05, count=3)
    Observation.from_weights(
        model,
        dict(model.named_parameters()),
        after,
        lr=0.05,
        local_steps=3,
        batch_size=size,
        labels=labels if granted else None,
    )


def test_an_attack_on_a_wrong_sign_says_so_in_its_notes():
    model = network(10)
    inputs, labels = batch(1, 10)
    update = by_name(model, gradient(model, inputs, labels))
    facts = {"input_shape": (3, 4, 4), "labels": labels}
    mistaken = Observation(model, {name: -tensor for name, tensor in update.items()}, **facts)
    attack = inverting_gradients(steps=1)
    assert mistaken.likely_mistake() in attack(mistaken).notes
    assert len(attack(Observation(model, update, **facts)).notes) + 1 == len(attack(mistaken).notes)


def test_labels_that_are_no_classes_are_left_out_of_the_check():
    model = network(10)
    inputs, labels = batch(1, 10)
    masked = torch.tensor([[int(labels), -100, 999]])
    found = Observation.from_gradient(model, gradient(model, inputs, labels), labels=masked)
    assert np.array_equal(found.labels, masked)


def test_each_threat_model_is_that_of_the_least_that_it_needs():
    model = nn.Linear(2, 2)
    known = Known(torch.zeros(1, 1, 1, 1), torch.zeros(1))
    facts = {
        "A": {},
        "B": {"batch_size": 1},
        "C": {"batch_size": 1, "lr": 0.1},
        "D": {"known": known},
        "E": {"known": known, "buffers": {"mean": torch.zeros(1)}},
        "F": {"manipulated": True},
        "G": {"manipulated": True, "known": known},
        "H": {"manipulated": True, "known": known, "selects": True},
    }
    found = {letter: Observation(model, {}, **granted).threat for letter, granted in facts.items()}
    assert {letter: threat.name for letter, threat in found.items()} == {
        letter: letter for letter in Threat.__members__
    }
