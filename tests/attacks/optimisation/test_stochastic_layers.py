"""A model that draws: with the client's draws a guess is exact, and the draws can be searched for."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.metrics import mse
from attacks.optimisation import dlg, inverting_gradients, matching
from attacks.optimisation.client_gradient import batched, client_gradient
from attacks.optimisation.problem import Problem, as_problem
from attacks.optimisation.stochastic_layers import give_draws, in_front, loss_of, stochastic_layers
from fl_app.defenses import precode
from fl_app.models.bottleneck import Bottleneck, add_bottleneck, divergence
from fl_app.training import Batch, Step, backpropagate
from fl_app.types import Observation

SIZE, BETA = 6, 0.3
STEP = Step(torch.Generator(), expected=2, rate=1.0, per_round=1)


def pictures(count: int) -> Tensor:
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    return F.interpolate(coarse, size=8, mode="bilinear", align_corners=True)


def drawing_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return add_bottleneck(
        nn.Sequential(
            nn.Conv2d(3, 6, 5, stride=2, padding=2),
            nn.Tanh(),
            nn.Conv2d(6, 6, 5, padding=2),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(6 * 4 * 4, 4),
        ).double(),
        size=SIZE,
    )


def seen_of(
    model: nn.Module, pixels: Tensor, labels: Tensor, seed: int = 7, beta: float = BETA
) -> tuple[Observation, Tensor]:
    """What the server sees of a client with PRECODE, and what the client drew."""
    torch.manual_seed(seed)
    draws = torch.randn(len(labels), SIZE, dtype=torch.float64)
    torch.manual_seed(seed)
    defense = precode(size=SIZE, beta=beta)
    _, update = backpropagate(model, Batch(pixels, labels, pixels, pixels), defense.rules.loss, STEP)
    obs = Observation(
        model=model,
        update=update,
        sent={name: entries != 0 for name, entries in update.items()},
        batch_size=len(labels),
        num_classes=4,
        input_shape=(3, 8, 8),
        mean=[0.0] * 3,
        std=[1.0] * 3,
        labels=labels,
        training=True,
        round=1,
        defense=defense.traces,
    )
    return obs, draws


@pytest.fixture
def case() -> tuple[Observation, Problem, Tensor, Tensor]:
    """An observation, its problem, the true pixels and draws."""
    pixels = pictures(2)
    obs, draws = seen_of(drawing_model(), pixels, torch.tensor([2, 0]))
    return obs, as_problem(obs, who="test"), pixels, draws


def test_layers_that_draw_are_found_by_their_path(case):
    _, problem, _, _ = case
    ((path, layer),) = stochastic_layers(problem.model).items()
    assert path == "5.bottleneck"
    assert isinstance(layer, Bottleneck)
    assert stochastic_layers(nn.Sequential(nn.Linear(2, 2), nn.Dropout())) == {}
    assert list(stochastic_layers(Bottleneck(4, 2))) == [""]


def test_true_images_and_draws_give_the_clients_gradient(case):
    obs, problem, pixels, draws = case
    shapes = give_draws(problem)
    assert shapes == {"5.bottleneck.given_draws": (2, SIZE)}
    (name,) = shapes
    guess, labels, drawn = pixels[None], obs.labels[None], {name: draws[None]}
    loss = loss_of(obs, problem)
    gradient, _ = client_gradient(problem.model, problem.names, guess, labels, drawn, loss)
    torch.testing.assert_close(gradient(guess, labels, drawn)[0], problem.target)
    off = gradient(guess, labels, {name: draws[None] + 0.1})[0]
    assert (off - problem.target).norm() > 1e-3 * problem.target.norm()
    unaware, _ = client_gradient(problem.model, problem.names, guess, labels, drawn)
    assert (unaware(guess, labels, drawn)[0] - problem.target).norm() > 1e-3 * problem.target.norm()


def test_many_guesses_at_once_are_those_one_by_one(case):
    obs, problem, pixels, draws = case
    (name,) = give_draws(problem)
    loss = loss_of(obs, problem)
    generator = torch.Generator().manual_seed(1)
    guesses = torch.stack([pixels, torch.rand(pixels.shape, generator=generator).double(), pixels.flip(0)])
    drawn = torch.stack([draws, draws.flip(0), torch.randn(draws.shape, generator=generator).double()])
    labels = torch.stack([obs.labels, obs.labels, obs.labels.flip(0)])
    guesses.requires_grad_(True)
    drawn.requires_grad_(True)
    gradient, reason = client_gradient(problem.model, problem.names, guesses, labels, {name: drawn}, loss)
    assert reason is None
    together = gradient(guesses, labels, {name: drawn})
    slopes = torch.autograd.grad(together.square().sum(), (guesses, drawn))
    for row in range(3):
        own = slice(row, row + 1)
        single, _ = client_gradient(
            problem.model, problem.names, guesses[own], labels[own], {name: drawn[own]}, loss
        )
        alone = single(guesses[own], labels[own], {name: drawn[own]})
        torch.testing.assert_close(together[own], alone)
        for slope, of_one in zip(
            slopes, torch.autograd.grad(alone.square().sum(), (guesses, drawn)), strict=True
        ):
            assert of_one[own].any()
            torch.testing.assert_close(slope[own], of_one[own])
    # a sample and its draw belong together
    assert torch.equal(drawn[0], drawn[1].flip(0))
    swapped = batched(problem.model, problem.names, loss)(
        pixels.flip(0)[None], obs.labels.flip(0)[None], {name: draws.flip(0)[None]}
    )
    torch.testing.assert_close(swapped[0], problem.target)


def test_the_loss_is_that_of_the_defense_also_where_spreads_vanish(case):
    obs, problem, pixels, draws = case
    give_draws(problem)
    layer = stochastic_layers(problem.model)["5.bottleneck"]
    with torch.no_grad():
        layer.encoder.bias[SIZE:] = -1e4
    loss = loss_of(obs, problem)
    layer.given_draws = draws
    value = loss(problem.model(pixels), obs.labels)
    with torch.no_grad():
        body = problem.model[:5](pixels)
        expected = F.cross_entropy(problem.model[5].linear(layer(body)), obs.labels)
        expected += BETA * divergence(layer.encoder(body))
    assert value.isfinite()
    # without gradients the mean passes; with a spread of zero that is the draw
    torch.testing.assert_close(value.detach(), expected)
    gradients = torch.autograd.grad(value, list(problem.model.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_without_knowing_the_defense_the_loss_is_the_cross_entropy(case):
    obs, problem, pixels, _ = case
    give_draws(problem)
    loss = loss_of(replace(obs, defense=None), problem)
    outputs = problem.model(pixels)
    torch.testing.assert_close(loss(outputs, obs.labels), F.cross_entropy(outputs, obs.labels))


def test_in_front_are_the_parameters_up_to_the_encoder(case):
    _, problem, _, _ = case
    mask = in_front(problem)
    wanted = [
        name.startswith(("0.", "2.", "5.bottleneck.encoder."))
        for name, parameter in problem.model.named_parameters()
        for _ in range(parameter.numel())
    ]
    assert mask.tolist() == wanted
    assert 0 < mask.sum() < len(mask)


def test_giving_draws_leaves_the_observation_alone(case):
    obs, _, _, _ = case
    inverting_gradients(steps=2, adaptive=True)(obs)
    assert all(layer.given_draws is None for layer in stochastic_layers(obs.model).values())
    assert not any(module._forward_hooks for module in obs.model.modules())
    copy.deepcopy(obs.model)


def test_an_attacker_who_searches_for_the_draws_gets_nearer():
    pixels = pictures(1)
    plain, adaptive = [], []
    for seed in range(3):
        obs, _ = seen_of(drawing_model(seed), pixels, torch.tensor([2]), seed=seed, beta=1e-3)
        for knows, errors in ((False, plain), (True, adaptive)):
            result = inverting_gradients(steps=100, tv=0.001, adaptive=knows)(obs)
            errors.append(float(mse(result.images, pixels)))
            assert any("draws searched for" in note for note in result.notes) == knows
    assert max(adaptive) < 0.2 * min(plain)


def test_dlg_searches_for_the_draws_too():
    pixels = pictures(2)
    obs, _ = seen_of(drawing_model(), pixels, torch.tensor([2, 0]), beta=1e-3)
    result = dlg(steps=4, labels="granted", adaptive=True)(obs)
    assert result.images.isfinite().all()
    assert result.objective < 1


def test_clients_in_several_stacks_are_attacked_as_if_alone(monkeypatch):
    model, pixels = drawing_model(), pictures(2)
    seen = [seen_of(model, pixels[i : i + 1], torch.tensor([i]), seed=i)[0] for i in range(2)]
    attack = inverting_gradients(steps=10, adaptive=True)
    alone = [attack(obs) for obs in seen]
    for budget in (matching.MEMORY_BUDGET, 1):
        monkeypatch.setattr(matching, "MEMORY_BUDGET", budget)
        for result, expected in zip(attack.many(seen), alone, strict=True):
            assert result.objective == pytest.approx(expected.objective, rel=1e-6)
            torch.testing.assert_close(result.images, expected.images, atol=1e-5, rtol=0)
