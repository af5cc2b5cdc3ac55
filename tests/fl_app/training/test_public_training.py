"""T and S from public samples: against the steps written out, and against what clients do."""

import statistics

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fl_app.data import Samples
from fl_app.models import mlp
from fl_app.seeding import generator_for
from fl_app.sketches import Chosen, draw_coordinates, flatten, scatter, top_coordinates
from fl_app.training import Job, LocalData, Rules, parameters, run_epochs
from fl_app.training.constrained import confine
from fl_app.training.public_training import clipping_bound, public_update, sum_gradients

SHAPE = (1, 4, 4)


@pytest.fixture
def model() -> nn.Module:
    return mlp(num_classes=3, in_shape=SHAPE, hidden=[8])


@pytest.fixture
def data() -> LocalData:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(256, (10, *SHAPE), generator=generator, dtype=torch.uint8)
    labels = torch.randint(3, (10,), generator=generator)
    return LocalData(Samples(inputs, labels), (0.5,), (0.25,), seed=0, client=0)


def whole_batch(data: LocalData):
    return data.batch(torch.arange(len(data)), torch.device("cpu"), torch.float32)


def flat_weights(model: nn.Module) -> torch.Tensor:
    return flatten({name: p.detach() for name, p in parameters(model).items()})


def test_magnitudes_are_summed_along_the_path_of_sgd(model, data):
    batch, start = whole_batch(data), flat_weights(model).clone()
    total, weights = torch.zeros_like(start), start.clone()
    for _ in range(4):
        nn.utils.vector_to_parameters(weights, model.parameters())
        loss = F.cross_entropy(model(batch.inputs), batch.labels)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        total, weights = total + gradient.abs(), weights - 0.5 * gradient
    nn.utils.vector_to_parameters(start, model.parameters())
    ours = sum_gradients(model, batch, lr=0.5, steps=4)
    torch.testing.assert_close(ours, total.double(), rtol=1e-5, atol=1e-7)
    assert torch.equal(flat_weights(model), start)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


def test_only_the_chosen_coordinates_move_and_as_if_the_others_were_put_back(model, data):
    """Oracle: the paper's form, which resets the others after every step."""
    start, batch = flat_weights(model).clone(), whole_batch(data)
    chosen = top_coordinates(sum_gradients(model, batch, lr=0.3, steps=3), 0.2)
    weights = start.clone()
    for _ in range(5):
        nn.utils.vector_to_parameters(weights, model.parameters())
        loss = F.cross_entropy(model(batch.inputs), batch.labels)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        moved = weights - 0.3 * gradient
        weights = start.clone()
        weights[chosen] = moved[chosen]
    nn.utils.vector_to_parameters(start, model.parameters())
    trainer = run_epochs(steps=5, batch_size=10)
    change = public_update(trainer, model, data, lr=0.3, sketch=Chosen(chosen))
    torch.testing.assert_close(change, (weights - start)[chosen], rtol=1e-4, atol=1e-6)
    bound = clipping_bound(trainer, model, data, lr=0.3, sketches=[Chosen(chosen)])
    assert bound == pytest.approx(float((weights - start).norm()), rel=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_whatever_is_not_chosen_is_changed_by_exactly_zero(model, data, momentum):
    like = parameters(model)
    chosen = draw_coordinates(flatten(like).numel(), 20, seed=1)
    rules = confine(Rules(), chosen, like)
    job = Job(round=1, lr=0.5, generator=generator_for(0, 1, 0, "rules"), rules=rules)
    change = flatten(run_epochs(epochs=3, batch_size=4, momentum=momentum)(model, data, job).update)
    assert torch.nonzero(change).flatten().tolist() == [i for i in chosen.tolist() if change[i] != 0]
    assert (change[chosen] != 0).sum() > 10


def test_with_all_coordinates_it_is_standard_training_bit_for_bit(model, data):
    like = parameters(model)
    everything = torch.arange(flatten(like).numel())
    trainer = run_epochs(epochs=2, batch_size=3)
    plain = trainer(model, data, Job(round=1, lr=0.2, generator=generator_for(0, 1, 0, "rules"))).update
    ours = public_update(trainer, model, data, lr=0.2, sketch=Chosen(everything))
    assert torch.equal(ours, flatten(plain))
    again = scatter(ours, everything, like)
    assert all(torch.equal(again[name], plain[name]) for name in plain)


def test_the_bound_for_random_sets_is_the_median(model, data):
    n = flatten(parameters(model)).numel()
    sets = [draw_coordinates(n, 15, seed) for seed in range(9)]
    trainer = run_epochs(steps=3, batch_size=10)
    norms = [float(public_update(trainer, model, data, lr=0.2, sketch=Chosen(one)).norm()) for one in sets]
    assert len(set(norms)) == 9
    bound = clipping_bound(trainer, model, data, lr=0.2, sketches=map(Chosen, sets))
    assert bound == pytest.approx(statistics.median(norms), rel=1e-6)


def test_chosen_coordinates_move_further_than_random_ones(model, data):
    chosen = top_coordinates(sum_gradients(model, whole_batch(data), lr=0.2, steps=5), 0.1)
    trainer, n = run_epochs(steps=5, batch_size=10), flatten(parameters(model)).numel()
    random = [draw_coordinates(n, len(chosen), seed) for seed in range(11)]
    top = clipping_bound(trainer, model, data, lr=0.2, sketches=[Chosen(chosen)])
    assert top > 1.5 * clipping_bound(trainer, model, data, lr=0.2, sketches=map(Chosen, random))


def test_a_public_round_that_changes_nothing_has_no_bound(model, data):
    for p in model.parameters():
        nn.init.zeros_(p)
    dead = torch.tensor([0])  # behind a ReLU that is off
    with pytest.raises(ValueError, match="clipping_bound: the public round must change something"):
        clipping_bound(run_epochs(steps=1), model, data, lr=0.1, sketches=[Chosen(dead)])
    with pytest.raises(ValueError, match="sum_gradients: steps must be at least 1"):
        sum_gradients(model, whole_batch(data), lr=0.1, steps=0)
