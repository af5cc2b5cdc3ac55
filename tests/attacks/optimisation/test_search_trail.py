"""What is kept of a search: evenly spaced iterates, judged by its own measures, and none after the end."""

import dataclasses
import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from attacks.optimisation import dlg, gradinversion, idlg, inverting_gradients
from attacks.optimisation.evidence import Evidence
from attacks.optimisation.trail import Trail, differences


@given(number=st.integers(1, 12), steps=st.integers(0, 100))
def test_a_trail_has_at_most_so_many_evenly_spaced_iterates_and_the_last(number, steps):
    trail = Trail(number)
    for step in range(steps + 1):
        trail.note(step, {"x": torch.tensor([float(step)])})
    seen = sorted(trail.seen)
    assert seen[0] == 0
    assert seen[-1] == steps
    assert len(seen) <= number + 1
    assert len(seen) >= min(steps + 1, number // 2)
    gaps = {b - a for a, b in itertools.pairwise(seen[:-1])}
    assert len(gaps) <= 1
    assert all(variables["x"].item() == step for step, variables in trail.seen.items())


def test_no_trail_keeps_nothing():
    trail = Trail(0)
    trail.note(0, {"x": torch.zeros(1)})
    assert trail.seen == {}


def test_differences_are_means_over_what_counts_by_parameter_and_in_all():
    target = torch.tensor([[1.0, 2.0, 3.0]])
    sent = torch.tensor([[True, False, True]])
    unknown, before = torch.full_like(target, torch.inf), torch.tensor([[0.0, 0.0, 1.0]])
    evidence = Evidence(target, sent, unknown, unknown, before)
    guess = torch.tensor([[2.0, 5.0, 6.0]])  # differs by 1, 3 and, less what was sent before, 2
    whole, layers = differences(guess, evidence, {"a": 2, "b": 1}, masked=False)
    assert whole.tolist() == pytest.approx([14 / 3])
    assert {name: value.item() for name, value in layers.items()} == {"a": 5.0, "b": 4.0}
    whole, layers = differences(guess, evidence, {"a": 2, "b": 1}, masked=True)
    assert whole.tolist() == pytest.approx([2.5])
    assert {name: value.item() for name, value in layers.items()} == {"a": 1.0, "b": 4.0}


@pytest.fixture
def obs(observe):
    generator = torch.Generator().manual_seed(0)
    layers = nn.Linear(16, 8), nn.Linear(8, 3)
    for layer in layers:
        for parameter in layer.parameters():
            nn.init.uniform_(parameter, -0.5, 0.5, generator=generator)
    model = nn.Sequential(nn.Flatten(), layers[0], nn.Sigmoid(), layers[1]).double()
    pixels = torch.rand(1, 1, 4, 4, generator=generator).double()
    return observe(model, pixels, torch.tensor([2]), mean=[0.0], std=[1.0])


def test_a_snapshot_tells_the_gradients_difference_at_its_images(obs):
    result = inverting_gradients(steps=9, trace=3)(obs)
    assert [s.iteration for s in result.trace] == [0, 4, 8, 9]
    for snapshot in result.trace:
        loss = F.cross_entropy(obs.model(snapshot.images), result.labels)
        gradients = torch.autograd.grad(loss, list(obs.model.parameters()))
        squares = [(g - t).square() for g, t in zip(gradients, obs.update.values(), strict=True)]
        expected = [square.mean().item() for square in squares]
        assert list(snapshot.layers.values()) == pytest.approx(expected)
        assert snapshot.distance == pytest.approx(
            sum(s.sum().item() for s in squares) / sum(s.numel() for s in squares)
        )
    assert list(result.trace[0].layers) == [name for name, _ in obs.model.named_parameters()]


@pytest.mark.parametrize("make", [dlg, idlg, inverting_gradients, gradinversion])
def test_looking_changes_nothing_and_by_default_nothing_is_kept(make, obs):
    plain, watched = make(steps=4)(obs), make(steps=4, trace=2)(obs)
    assert plain.trace == ()
    assert torch.equal(plain.images, watched.images)
    assert watched.trace[-1].iteration == (4 if watched.iterations is None else watched.iterations)


def test_a_search_that_is_over_has_its_trail_up_to_there(obs):
    result = dlg(trace=1000)(dataclasses.replace(obs, labels=None))
    assert result.objective < 1e-8
    assert result.iterations == result.trace[-1].iteration < 300
    assert result.trace[-1].objective == pytest.approx(result.objective)
    assert [s.iteration for s in result.trace] == list(range(result.iterations + 1))
    assert all(s.objective >= 1e-8 for s in result.trace[:-1])
    torch.testing.assert_close(result.trace[-1].images, result.images)


def test_clients_attacked_together_have_the_trails_that_they_have_alone(obs):
    double = dataclasses.replace(obs, update={name: 2 * g for name, g in obs.update.items()})
    attack = dlg(steps=40, trace=50)
    both = attack.many([obs, double])
    for seen, result in zip((obs, double), both, strict=True):
        alone = attack(seen)
        assert alone.iterations == result.iterations
        assert [s.iteration for s in alone.trace] == [s.iteration for s in result.trace]
    assert both[0].iterations is not None


@pytest.mark.parametrize("trace", [-1, 1.5, True])
def test_a_number_of_snapshots_that_is_none_is_refused(trace):
    with pytest.raises(ValueError, match="inverting_gradients: trace must be an integer, 0 or more"):
        inverting_gradients(trace=trace)
