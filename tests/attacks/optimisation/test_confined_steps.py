"""Clients that train nothing but what they send: local steps are unrolled as such a client takes them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from attacks.metrics import mse
from attacks.optimisation import dlg, gradinversion, inverting_gradients
from attacks.optimisation.adaptation import informed, informed_recipe
from attacks.optimisation.client_gradient import batched, client_gradient
from attacks.optimisation.problem import as_problem, flatten_update
from fl_app.data import Samples
from fl_app.defenses import fl_basic, fl_top
from fl_app.sketches import coordinate_count, draw_coordinates, mask_coordinates
from fl_app.training import Job, LocalData, Rules, parameters, run_epochs
from fl_app.training.constrained import confine
from fl_app.types import Observation

SHARE = 0.3
read = partial(as_problem, who="test", unroll=True)


def model(activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 9), activation(), nn.Linear(9, 5)).double()


def sent_by_client(
    net: nn.Module, *, samples: int = 1, steps: int = 5, size: int = 1, lr: float = 1.0, seed: int = 0
) -> tuple[Observation, Tensor, Tensor]:
    """What a real client sends with its trainer and scheme, and what it trained on, in its order."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(256, (samples, 3, 4, 4), generator=generator, dtype=torch.uint8)
    data = LocalData(
        Samples(inputs, torch.arange(seed, seed + samples) % 5), (0.4,) * 3, (0.3,) * 3, seed, client=0
    )
    like = {name: p.detach() for name, p in parameters(net).items()}
    n = sum(p.numel() for p in like.values())
    sketch = fl_top(SHARE).scheme(n, 0, draw_coordinates(n, coordinate_count(SHARE, n), seed=7))
    job = Job(1, lr, generator, confine(Rules(), sketch.trained, like), keep_batches=True)
    trained = run_epochs(steps=steps, batch_size=size)(net, data, job)
    update = sketch.restore(sketch.take(trained.update), like)
    labels = torch.cat([batch.labels for batch in trained.batches])
    obs = Observation(
        net,
        update,
        sent={name: entries != 0 for name, entries in update.items()},
        lr=lr,
        local_steps=trained.steps,
        local_batch_size=size,
        batch_size=samples,
        num_classes=5,
        input_shape=(3, 4, 4),
        mean=data.mean,
        std=data.std,
        labels=labels,
        defense=fl_top(SHARE).traces,
    )
    return obs, torch.cat([batch.inputs for batch in trained.batches]), labels


@pytest.mark.parametrize("defense", [fl_basic(SHARE), fl_top(SHARE)], ids=["fl_basic", "fl_top"])
@pytest.mark.parametrize(("samples", "steps", "size"), [(1, 1, 1), (1, 5, 1), (3, 4, 3), (6, 3, 2)])
def test_the_clients_own_samples_explain_what_it_sends(defense, samples, steps, size):
    obs, inputs, labels = sent_by_client(model(), samples=samples, steps=steps, size=size)
    _, problem = informed(replace(obs, defense=defense.traces), read)
    way = batched(problem.model, problem.names, course=problem.local)
    found = way(inputs[None], labels[None], {}, problem.trained[None])[0]
    torch.testing.assert_close(found, problem.target, rtol=0, atol=1e-13)
    free = way(inputs[None], labels[None], {})[0]
    gap = (free - problem.target)[problem.sent].abs().max()
    # in the first step nothing has moved yet
    assert gap < 1e-13 if steps == 1 else gap > 1e-3


def test_an_entry_that_was_trained_in_vain_may_count_as_not_trained():
    net = model(nn.ReLU)
    with torch.no_grad():
        net[1].bias[:3] = -100.0  # units that are off
    obs, inputs, labels = sent_by_client(net)
    n = sum(p.numel() for p in net.parameters())
    chosen = mask_coordinates(draw_coordinates(n, coordinate_count(SHARE, n), seed=7), obs.update)
    _, problem = informed(obs, read)
    truly = flatten_update(chosen, problem.names)
    assert (truly & ~problem.trained).sum() > 10
    assert not (problem.trained & ~truly).any()
    way = batched(problem.model, problem.names, course=problem.local)
    for mask in (truly, problem.trained):
        found = way(inputs[None], labels[None], {}, mask[None])[0]
        torch.testing.assert_close(found, problem.target, rtol=0, atol=1e-13)


def test_it_can_be_differentiated_like_any_other():
    obs, inputs, labels = sent_by_client(model(), samples=2, steps=3, size=2)
    _, problem = informed(obs, read)
    way = batched(problem.model, problem.names, course=problem.local)
    weights = torch.randn(problem.target.numel(), dtype=torch.float64)

    def value(guess: Tensor) -> Tensor:
        return (way(guess[None], labels[None], {}, problem.trained[None])[0] * weights).sum()

    assert torch.autograd.gradcheck(value, (inputs.requires_grad_(True),))


@pytest.mark.parametrize("unroll", [False, True])
def test_guesses_with_entries_of_their_own_are_the_same_together_and_alone(unroll):
    obs, _, _ = sent_by_client(model(), samples=2, steps=3, size=2)
    problem = as_problem(obs, who="test", unroll=unroll)
    guesses = torch.randn(4, 2, 3, 4, 4).double().requires_grad_(True)
    labels, trained = torch.randint(5, (4, 2)), torch.rand(4, problem.target.numel()) < 0.3
    make = partial(client_gradient, problem.model, problem.names, course=problem.local)
    together, reason = make(guesses, labels, trained=trained)
    assert reason is None
    rows = together(guesses, labels, {}, trained)
    assert not rows[~trained].any()
    (slope,) = torch.autograd.grad(rows.pow(3).sum(), guesses)
    for row in range(4):
        own = guesses[row : row + 1], labels[row : row + 1]
        alone, _ = make(*own, trained=trained[row : row + 1])
        found = alone(*own, {}, trained[row : row + 1])
        torch.testing.assert_close(found[0], rows[row])
        (of_one,) = torch.autograd.grad(found.pow(3).sum(), guesses)
        assert of_one[row].any()
        torch.testing.assert_close(slope[row], of_one[row])


def test_nothing_is_held_against_what_was_not_trained():
    obs, _, _ = sent_by_client(model())
    seen, problem = informed(obs, read)
    recipe = informed_recipe(inverting_gradients().recipe(problem, [seen]), seen, problem)
    assert problem.withheld is None
    assert recipe.masked
    assert torch.equal(problem.sent, flatten_update(obs.sent, problem.names))


@pytest.mark.parametrize("attack", [inverting_gradients, dlg, gradinversion])
def test_the_plain_attacker_moves_all_weights_whatever_the_defense(attack):
    obs, _, _ = sent_by_client(model())
    settings = {"steps": 3, "restarts": 1, "fedavg": "unrolled"}
    blind, plain = (attack(**settings)(one) for one in (replace(obs, defense=None), obs))
    assert torch.equal(blind.images, plain.images)
    assert blind.notes == plain.notes
    adaptive = attack(adaptive=True, **settings)(obs)
    assert not torch.equal(adaptive.images, plain.images)
    assert any("not trained" in note for note in adaptive.notes)


def test_clients_that_show_other_entries_are_attacked_as_if_alone():
    net = model(nn.ReLU)
    seen = [sent_by_client(net, seed=seed)[0] for seed in (1, 2)]
    masks = [flatten_update(obs.sent, tuple(obs.sent)) for obs in seen]
    assert not torch.equal(*masks)
    # one of which nothing is known of the defense: all its weights move
    seen.append(replace(seen[0], defense=None))
    attack = inverting_gradients(steps=10, adaptive=True, fedavg="unrolled")
    results = attack.many(seen)
    for result, obs in zip(results, seen, strict=True):
        torch.testing.assert_close(result.images, attack(obs).images, atol=1e-6, rtol=0)
    assert not torch.allclose(results[0].images, results[2].images, atol=1e-3)


@pytest.mark.slow
def test_knowing_what_was_trained_brings_the_image_nearer():
    obs, inputs, _ = sent_by_client(model(), steps=8, lr=2.0)
    pixels = inputs * 0.3 + 0.4
    attack = inverting_gradients(steps=150, tv=0.0, adaptive=True, fedavg="unrolled")
    told, untold = (mse(attack(one).images, pixels) for one in (obs, replace(obs, defense=None)))
    assert told < 0.5 * untold
