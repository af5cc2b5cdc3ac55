import copy
import dataclasses

import pytest
import torch
from torch import nn

from attacks.optimisation.known_labels import known_labels
from attacks.optimisation.problem import as_problem

BATCH = 3


@pytest.fixture
def obs(observe, small_lenet):
    inputs = torch.rand(BATCH, 3, 8, 8).double()
    return observe(small_lenet, inputs, torch.tensor([2, 0, 1]), mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])


def test_the_target_is_the_update_in_the_order_of_the_model(obs):
    shuffled = dict(reversed(obs.update.items()))
    problem = as_problem(dataclasses.replace(obs, update=shuffled), who="t")
    expected = torch.cat([obs.update[name].flatten() for name, _ in obs.model.named_parameters()])
    assert torch.equal(problem.target, expected)
    assert problem.sent.all() == (expected != 0).all()


def test_inputs_are_normalised_pixels(obs):
    problem = as_problem(obs, who="t")
    inputs = problem.to_inputs(torch.full((2, 1, 3, 1, 1), 0.5).double())
    torch.testing.assert_close(inputs.flatten()[:3], torch.tensor([0.0, 1 / 3, 0.5]).double())


def test_several_local_steps_become_one_gradient_and_a_note(obs):
    delta = {name: -0.1 * 4 * gradient for name, gradient in obs.update.items()}
    after = dataclasses.replace(obs, update=delta, lr=0.1, local_steps=4)
    problem = as_problem(after, who="t")
    torch.testing.assert_close(problem.target, as_problem(obs, who="t").target)
    assert any("4 local steps matched as one" in note for note in problem.notes)


@pytest.mark.parametrize("lr", [None, 0.0])
def test_several_local_steps_need_the_learning_rate(obs, lr):
    with pytest.raises(ValueError, match=r"t: .*needs lr > 0.*got lr="):
        as_problem(dataclasses.replace(obs, local_steps=4, lr=lr), who="t")


def test_the_masks_are_those_granted_or_else_the_zeros(obs):
    bias = obs.update["0.bias"].clone()
    bias[0] = 0
    update = obs.update | {"0.bias": bias}
    zeros = as_problem(dataclasses.replace(obs, update=update), who="t").sent
    start = obs.update["0.weight"].numel()
    assert not zeros[start]
    everything = {name: torch.ones_like(g, dtype=torch.bool) for name, g in update.items()}
    assert as_problem(dataclasses.replace(obs, update=update, sent=everything), who="t").sent.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_shape": None}, r"must grant input_shape \(C, H, W\), got None"),
        ({"input_shape": (192,)}, r"must grant input_shape"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"std": [1.0, 0.0, 1.0]}, "std above 0"),
        ({"mean": [0.5]}, "must have 3 entries"),
        ({"update": {}}, "at least one of"),
        ({"update": {"head": torch.zeros(1)}}, "no such parameter"),
        ({"update": {"0.bias": torch.zeros(7)}}, r"shape \(7,\), the model: \(6,\)"),
        ({"update": {"0.bias": torch.full((6,), torch.nan)}}, "must be finite, got 6"),
    ],
)
def test_observations_that_cannot_be_attacked_are_refused(obs, change, message):
    with pytest.raises(ValueError, match=message):
        as_problem(dataclasses.replace(obs, **change), who="t")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        ({"training": None}, "eval mode assumed"),
        ({"training": True}, "client's mode, train"),
        ({"mean": None}, "normalisation is not granted"),
        ({"batch_size": None, "labels": None}, "one sample assumed"),
    ],
)
def test_every_assumption_is_noted(obs, change, note):
    assert any(note in line for line in as_problem(dataclasses.replace(obs, **change), who="t").notes)


def test_missing_layers_and_empty_updates_are_noted(obs):
    part = as_problem(dataclasses.replace(obs, update={"0.bias": torch.zeros(6)}), who="t")
    assert any("1 of 6 parameter tensors" in note for note in part.notes)
    assert any("nothing to match" in note for note in part.notes)


def test_granted_labels_tell_the_batch_size(obs):
    assert as_problem(dataclasses.replace(obs, batch_size=None), who="t").batch_size == BATCH


@pytest.mark.parametrize("training", [True, False])
def test_the_client_mode_and_statistics_are_used_on_a_copy(observe, training):
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 2)
    )
    model.train(not training)
    model[1].running_mean.fill_(1.0)
    before = copy.deepcopy(model.state_dict())
    inputs = torch.rand(4, 3, 4, 4)
    sent = {"1.running_mean": torch.full((4,), 2.0), "1.running_var": torch.full((4,), 3.0)}
    obs = observe(copy.deepcopy(model), inputs, torch.tensor([0, 1, 0, 1]), training=training, buffers=sent)
    obs = dataclasses.replace(obs, model=model)
    problem = as_problem(obs, who="t")
    normal = copy.deepcopy(model[1]).train(training)
    if not training:
        normal.running_mean.fill_(2.0)
        normal.running_var.fill_(3.0)
    expected = model[4](model[3](normal(model[0](inputs))))
    torch.testing.assert_close(problem.model(inputs), expected)
    torch.testing.assert_close(problem.model(inputs), expected)
    assert model.training != training
    torch.testing.assert_close(dict(model.state_dict()), dict(before))
    assert any("dropout" in note for note in problem.notes) == training


def test_labels_are_granted_inferred_or_asked_for(obs):
    problem = as_problem(obs, who="t")
    blind = dataclasses.replace(obs, labels=None)
    assert known_labels(obs, problem, "auto", who="t")[0].tolist() == [2, 0, 1]
    assert known_labels(obs, problem, "granted", who="t")[1] == ["labels granted"]
    for labels, notes in (
        known_labels(blind, problem, "auto", who="t"),
        known_labels(obs, problem, "infer", who="t"),
    ):
        assert sorted(labels.tolist()) == [0, 1, 2]
        assert "Yin" in notes[0]
    with pytest.raises(ValueError, match="labels='granted' needs labels"):
        known_labels(blind, problem, "granted", who="t")
    with pytest.raises(ValueError, match=r"shape \(3,\), got \(1,\)"):
        known_labels(dataclasses.replace(obs, labels=torch.tensor([1])), problem, "auto", who="t")


def test_one_label_is_inferred_by_idlg(observe, small_lenet):
    obs = observe(small_lenet, torch.rand(1, 3, 8, 8).double(), torch.tensor([3]), granted=False)
    labels, notes = known_labels(obs, as_problem(obs, who="t"), "auto", who="t")
    assert labels.tolist() == [3]
    assert "iDLG" in notes[0]


def test_repeated_labels_fill_the_batch(observe, small_lenet):
    inputs = torch.rand(5, 3, 8, 8).double()
    obs = observe(small_lenet, inputs, torch.tensor([3, 3, 3, 0, 3]), granted=False)
    labels, _ = known_labels(obs, as_problem(obs, who="t"), "auto", who="t")
    assert sorted(labels.tolist()) == [0, 3, 3, 3, 3]
