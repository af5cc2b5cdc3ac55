"""Local steps, unrolled: the guess that the client trained on explains its update exactly."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks.optimisation import inverting_gradients
from attacks.optimisation.client_gradient import batched, client_gradient
from attacks.optimisation.local_training import LocalTraining, plan_local_training
from attacks.optimisation.problem import as_problem, flatten_update
from fl_app.types import Observation


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 9), nn.Tanh(), nn.Linear(9, 5)).double()


def trained(net, inputs, labels, lr, parts):
    """Run plain SGD with torch's own optimiser and return weights after minus weights before."""
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    optimiser = torch.optim.SGD(net.parameters(), lr=lr)
    for start, end in parts:
        optimiser.zero_grad()
        F.cross_entropy(net(inputs[start:end]), labels[start:end]).backward()
        optimiser.step()
    change = {name: p.detach() - before[name] for name, p in net.named_parameters()}
    net.load_state_dict(before)
    return change


def observed(samples, steps, size, lr=0.5, **granted):
    net = model()
    inputs, labels = torch.rand(samples, 3, 4, 4).double(), torch.arange(samples) % 5
    starts = [(i, min(i + size, samples)) for i in range(0, samples, size)]
    parts = [starts[step % len(starts)] for step in range(steps)]
    obs = Observation(
        net,
        trained(net, inputs, labels, lr, parts),
        lr=lr,
        local_steps=steps,
        local_batch_size=size,
        batch_size=samples,
        num_classes=5,
        input_shape=(3, 4, 4),
        labels=labels,
        **granted,
    )
    return obs, inputs, labels


@pytest.mark.parametrize(
    ("samples", "steps", "size"), [(1, 1, 1), (1, 7, 1), (4, 3, 4), (5, 6, 2), (6, 2, 3)]
)
def test_the_clients_own_samples_explain_its_update_exactly(samples, steps, size):
    obs, inputs, labels = observed(samples, steps, size)
    problem = as_problem(obs, who="test", unroll=True)
    for stack in (1, 3):
        guesses = inputs.expand(stack, *inputs.shape)
        gradient, note = client_gradient(
            problem.model, problem.names, guesses, labels.expand(stack, -1), course=problem.local
        )
        assert note is None
        found = gradient(guesses, labels.expand(stack, -1), {})
        torch.testing.assert_close(found, problem.target.expand(stack, -1), rtol=0, atol=1e-12)
    if steps > 1:
        single = as_problem(obs, who="test")
        plain = batched(single.model, single.names)(inputs[None], labels[None], {})
        assert (plain[0] - single.target).abs().max() > 1e-4


def test_it_can_be_differentiated_like_any_other():
    obs, inputs, labels = observed(2, 3, 1)
    problem = as_problem(obs, who="test", unroll=True)
    gradient = batched(problem.model, problem.names, course=problem.local)
    weights = torch.randn(problem.target.numel(), dtype=torch.float64)

    def value(guess):
        return (gradient(guess[None], labels[None], {})[0] * weights).sum()

    assert torch.autograd.gradcheck(value, (inputs.requires_grad_(True),))


def test_what_is_not_granted_is_assumed_and_said():
    obs, _, _ = observed(5, 6, 2)
    local, notes = plan_local_training(obs, 5, who="test")
    assert local == LocalTraining(0.5, ((0, 2), (2, 4), (4, 5)) * 2)
    assert notes == [
        "6 local steps unrolled, 2 samples each",
        "every pass is taken to go through the samples in the same order",
    ]
    blind = Observation(obs.model, obs.update, lr=0.5, local_steps=2)
    local, notes = plan_local_training(blind, 3, who="test")
    assert local.parts == ((0, 3), (0, 3))
    assert "the local batch size is not granted" in notes[1]


@pytest.mark.parametrize(("lr", "steps"), [(None, 2), (0.0, 2), (0.1, 0)])
def test_local_steps_without_a_rate_are_refused(lr, steps):
    obs = Observation(model(), {}, lr=lr, local_steps=steps)
    with pytest.raises(ValueError, match="test: an update of several local steps needs lr > 0"):
        plan_local_training(obs, 1, who="test")


def test_an_attack_names_which_way_it_took():
    obs, _, _ = observed(1, 4, 1)
    flat = flatten_update(obs.update, tuple(obs.update))
    for way, words in (("single", "matched as one"), ("unrolled", "4 local steps unrolled")):
        found = inverting_gradients(steps=3, fedavg=way)(obs)
        assert any(words in note for note in found.notes)
    assert torch.equal(flat, flatten_update(obs.update, tuple(obs.update)))
    with pytest.raises(ValueError, match="fedavg must be one of"):
        inverting_gradients(fedavg="both")


@pytest.mark.slow
def test_unrolling_recovers_what_one_step_cannot():
    obs, inputs, _ = observed(1, 8, 1, lr=2.0)
    errors = {
        way: float((inverting_gradients(steps=300, tv=0.0, fedavg=way)(obs).images - inputs).square().mean())
        for way in ("single", "unrolled")
    }
    assert errors["unrolled"] < 0.5 * errors["single"]
