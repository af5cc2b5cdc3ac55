import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attacks.labels import fill_batch, idlg_label, yin_labels

CLASSES = 12


def relu_model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, CLASSES))


def client(observe, seed: int, labels: list[int], **more):
    model = relu_model(seed)
    inputs = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(seed))
    return observe(model, inputs, torch.tensor(labels), granted=False, mean=None, std=None, **more)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), label=st.integers(0, CLASSES - 1))
def test_idlg_finds_the_label_of_any_single_sample(observe_once, seed, label):
    found = idlg_label()(client(observe_once, seed, [label]))
    assert found.labels.tolist() == [label]
    assert not found.notes


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=5),
)
def test_yin_never_names_a_class_that_is_not_in_the_batch(observe_once, seed, labels):
    found = yin_labels()(client(observe_once, seed, labels))
    assert set(found.labels.tolist()) <= set(labels)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=2, max_size=5, unique=True),
)
def test_yin_finds_all_distinct_labels_of_an_untrained_model(observe_once, seed, labels):
    found = yin_labels()(client(observe_once, seed, labels))
    assert sorted(found.labels.tolist()) == sorted(labels)
    assert not found.notes


@pytest.fixture(scope="module")
def observe_once():
    """`observe` for tests that hypothesis runs many times."""
    import torch.nn.functional as F

    from fl_app.types import Observation

    def make(model, inputs, labels, **facts):
        gradients = torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters()))
        names = [name for name, _ in model.named_parameters()]
        return Observation(model, dict(zip(names, gradients, strict=True)), batch_size=len(labels), num_classes=CLASSES)

    return make


@pytest.mark.parametrize(("attack", "labels"), [(idlg_label(), [3]), (yin_labels(), [7, 1, 4])])
def test_a_fedavg_delta_gives_the_same_labels_as_the_gradient(observe, attack, labels):
    gradient = client(observe, 5, labels)
    delta = {name: -0.1 * g for name, g in gradient.update.items()}
    after = dataclasses.replace(gradient, update=delta, lr=None, local_steps=1)
    assert attack(after).labels.tolist() == attack(gradient).labels.tolist()
    # without the turned sign the answer would be another one
    assert attack(dataclasses.replace(after, local_steps=None)).labels.tolist() != labels


def test_idlg_says_that_the_batch_is_too_large(observe):
    found = idlg_label()(client(observe, 0, [1, 2]))
    assert any("2 samples" in note for note in found.notes)


def test_features_below_zero_break_the_premise_and_are_reported(observe):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, CLASSES))
    inputs = torch.randn(2, 6)
    found = yin_labels()(observe(model, inputs, torch.tensor([0, 1]), mean=None, std=None))
    assert any("not non-negative" in note for note in found.notes)
    assert len(found.labels) == 2


def test_repeated_labels_are_reported(observe):
    found = yin_labels()(client(observe, 0, [3, 3, 3, 8]))
    assert sorted(found.labels.tolist()) == [3, 8]
    assert any("repeat" in note for note in found.notes)


def test_batches_larger_than_the_number_of_classes_do_not_crash(observe):
    labels = list(range(CLASSES)) * 3
    found = yin_labels()(client(observe, 0, labels))
    assert set(found.labels.tolist()) <= set(labels)
    assert found.notes


def test_without_a_batch_size_all_negative_rows_count(observe):
    found = yin_labels()(client(observe, 0, [3, 8, 9], batch_size=None))
    assert sorted(found.labels.tolist()) == [3, 8, 9]


@pytest.mark.parametrize("attack", [idlg_label(), yin_labels()])
def test_a_pruned_output_layer_is_reported(observe, attack):
    obs = client(observe, 0, [3])
    weight = obs.update["2.weight"].clone()
    weight[0, weight[0].argmax()] = 0
    pruned = dataclasses.replace(obs, update=obs.update | {"2.weight": weight})
    assert any("1 of 480 entries of 2.weight were not sent" in note for note in attack(pruned).notes)
    masked = dataclasses.replace(obs, sent={"2.weight": torch.arange(480).view(12, 40) >= 7})
    assert any("7 of 480" in note for note in attack(masked).notes)


@pytest.mark.parametrize("attack", [idlg_label(), yin_labels()])
def test_an_empty_output_layer_leaves_a_guess_that_is_called_one(observe, attack):
    obs = client(observe, 0, [3])
    empty = dataclasses.replace(obs, update=obs.update | {"2.weight": torch.zeros(12, 40)})
    found = attack(empty)
    assert len(found.labels) == 1
    assert any("guess" in note for note in found.notes)


def test_the_batch_is_filled_by_the_weight_of_the_rows():
    rows = torch.tensor([[0.1, 0.1], [-3.0, -3.0], [-1.0, -0.9]])
    assert fill_batch(torch.tensor([1, 2]), rows, 4).tolist() == [1, 1, 1, 2]
    assert fill_batch(torch.tensor([1, 2]), rows, 1).tolist() == [1]


def test_repeats_of_an_untrained_model_are_counted(observe):
    labels = [3, 3, 3, 3, 8, 8]
    obs = client(observe, 1, labels)
    found = yin_labels()(obs)
    assert sorted(fill_batch(found.labels, obs.update["2.weight"], 6).tolist()) == labels
