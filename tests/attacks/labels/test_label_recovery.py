import dataclasses
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from attacks.labels import bias_labels, fill_batch, idlg_label, yin_labels
from fl_app.transforms import drop_smallest, keep_topk, take_sign
from fl_app.types import Observation

CLASSES = 12


def client(seed: int, labels: list[int], activation: type[nn.Module] = nn.ReLU, **more) -> Observation:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 40), activation(), nn.Linear(40, CLASSES))
    loss = F.cross_entropy(model(torch.randn(len(labels), 6)), torch.tensor(labels))
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    update = dict(zip(dict(model.named_parameters()), gradients, strict=True))
    return Observation(model, update, **{"batch_size": len(labels), "num_classes": CLASSES} | more)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), label=st.integers(0, CLASSES - 1))
def test_idlg_finds_the_label_of_any_single_sample(seed, label):
    found = idlg_label()(client(seed, [label]))
    assert found.labels.tolist() == [label]
    assert not found.notes


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), label=st.integers(0, CLASSES - 1))
def test_idlg_needs_no_premise_on_the_features_where_the_bias_was_sent(seed, label):
    found = idlg_label()(client(seed, [label], nn.Identity))
    assert found.labels.tolist() == [label]
    assert not found.notes


def test_without_the_whole_bias_idlg_reads_the_rows():
    seen = client(3, [5])
    without = dataclasses.replace(seen, update={k: v for k, v in seen.update.items() if k != "2.bias"})
    pruned = dict(seen.update)
    pruned["2.bias"] = torch.zeros(CLASSES).index_fill(0, torch.tensor([2]), -1.0)
    for obs in (without, dataclasses.replace(seen, update=pruned)):
        assert idlg_label()(obs).labels.tolist() == [5]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=5),
)
def test_yin_never_names_a_class_that_is_not_in_the_batch(seed, labels):
    found = yin_labels()(client(seed, labels))
    assert set(found.labels.tolist()) <= set(labels)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=2, max_size=5, unique=True),
)
def test_yin_finds_all_distinct_labels_of_an_untrained_model(seed, labels):
    found = yin_labels()(client(seed, labels))
    assert sorted(found.labels.tolist()) == sorted(labels)
    assert not found.notes


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=30),
    saturation=st.sampled_from([1.0, 30.0]),
)
def test_the_bias_names_no_class_that_is_not_in_the_batch_whatever_the_features(seed, labels, saturation):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))
    model[2].weight.data *= saturation
    bias = torch.autograd.grad(
        F.cross_entropy(model(torch.randn(len(labels), 6)), torch.tensor(labels)), model[2].bias
    )[0]
    update = {"2.weight": torch.ones(CLASSES, 8), "2.bias": bias}
    found = bias_labels()(Observation(model, update))
    assert set(found.labels.tolist()) <= set(labels)
    if saturation == 1 and len(set(labels)) == len(labels) <= 4:
        assert set(found.labels.tolist()) == set(labels)


@pytest.mark.parametrize("transform", [take_sign(), drop_smallest(0.5), keep_topk(0.3)])
def test_signs_and_the_largest_entries_of_the_bias_still_name_all_labels(transform, ctx):
    obs = client(1, [3, 8, 9], nn.Tanh)
    update, _ = transform.apply(obs.update, transform.init(obs.update), ctx)
    found = bias_labels()(dataclasses.replace(obs, update=update))
    assert sorted(found.labels.tolist()) == [3, 8, 9]
    absent = int((update["2.bias"] == 0).sum())
    assert any(f"{absent} of 12 biases were not sent" in note for note in found.notes) == (absent > 0)


def test_without_a_bias_there_is_nothing_to_read():
    obs = client(1, [3])
    with pytest.raises(ValueError, match=r"bias_labels: the update must have the bias beside 2.weight"):
        bias_labels()(dataclasses.replace(obs, update={"2.weight": obs.update["2.weight"]}))


@pytest.mark.parametrize(
    ("attack", "labels"), [(idlg_label(), [3]), (yin_labels(), [7, 1, 4]), (bias_labels(), [7, 1, 4])]
)
def test_a_fedavg_delta_gives_the_same_labels_as_the_gradient(attack, labels):
    gradient = client(5, labels)
    delta = {name: -0.1 * g for name, g in gradient.update.items()}
    after = dataclasses.replace(gradient, update=delta, lr=None, local_steps=1)
    assert attack(after).labels.tolist() == attack(gradient).labels.tolist()
    # without the turned sign the answer would be another one
    assert attack(dataclasses.replace(after, local_steps=None)).labels.tolist() != labels


def test_idlg_says_that_the_batch_is_too_large():
    found = idlg_label()(client(0, [1, 2]))
    assert any("2 samples" in note for note in found.notes)


def test_features_below_zero_break_the_premise_and_are_reported():
    found = yin_labels()(client(0, [0, 1], nn.Tanh))
    assert any("not non-negative" in note for note in found.notes)
    assert len(found.labels) == 2


def test_repeated_labels_are_reported():
    found = yin_labels()(client(0, [3, 3, 3, 8]))
    assert sorted(found.labels.tolist()) == [3, 8]
    assert any("repeat" in note for note in found.notes)


def test_batches_larger_than_the_number_of_classes_do_not_crash():
    labels = list(range(CLASSES)) * 3
    found = yin_labels()(client(0, labels))
    assert set(found.labels.tolist()) <= set(labels)
    assert found.notes


def test_without_a_batch_size_all_negative_rows_count():
    found = yin_labels()(client(0, [3, 8, 9], batch_size=None))
    assert sorted(found.labels.tolist()) == [3, 8, 9]


def test_equation_5_as_it_stands_names_every_negative_row():
    obs = client(0, [0, 1], nn.Tanh)
    assert len(yin_labels(told=False)(obs).labels) > len(yin_labels()(obs).labels) == 2


@pytest.mark.parametrize("attack", [idlg_label(), yin_labels()])
def test_a_pruned_output_layer_is_reported(attack):
    obs = client(0, [3])
    weight = obs.update["2.weight"].clone()
    weight[0, weight[0].argmax()] = 0
    pruned = dataclasses.replace(obs, update=obs.update | {"2.weight": weight})
    assert any("1 of 480 entries of 2.weight were not sent" in note for note in attack(pruned).notes)
    masked = dataclasses.replace(obs, sent={"2.weight": torch.arange(480).view(12, 40) >= 7})
    assert any("7 of 480" in note for note in attack(masked).notes)


@pytest.mark.parametrize("attack", [idlg_label(), yin_labels()])
def test_an_empty_output_layer_leaves_a_guess_that_is_called_one(attack):
    obs = client(0, [3])
    empty = dataclasses.replace(obs, update=obs.update | {"2.weight": torch.zeros(12, 40)})
    found = attack(empty)
    assert len(found.labels) == 1
    assert any("guess" in note for note in found.notes)


def test_the_batch_is_filled_by_the_weight_of_the_rows():
    rows = torch.tensor([[0.1, 0.1], [-3.0, -3.0], [-1.0, -0.9]])
    assert fill_batch(torch.tensor([1, 2]), rows, 4).tolist() == [1, 1, 1, 2]
    assert fill_batch(torch.tensor([1, 2]), rows, 1).tolist() == [1]


def test_repeats_of_an_untrained_model_are_mostly_counted():
    found = 0
    for seed in range(50):
        labels = torch.randint(4, (8,), generator=torch.Generator().manual_seed(seed)).tolist()
        obs = client(seed, labels)
        filled = fill_batch(yin_labels()(obs).labels, obs.update["2.weight"], 8).tolist()
        assert len(filled) == 8
        found += (Counter(filled) & Counter(labels)).total()
    assert found / 400 > 0.9
