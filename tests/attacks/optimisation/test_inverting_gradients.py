import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.metrics import mse, psnr
from attacks.optimisation import inverting_gradients, matching
from attacks.optimisation.image_space import to_pixels
from attacks.optimisation.priors import colour_variation
from attacks.optimisation.problem import as_problem

MEAN, STD = [0.5, 0.45, 0.4], [0.25, 0.2, 0.3]


def as_inputs(pixels):
    mean, std = (torch.tensor(values, dtype=pixels.dtype).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std


@pytest.fixture
def pixels() -> torch.Tensor:
    """Smooth pictures, which is what the prior expects."""
    coarse = torch.rand(4, 3, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    return F.interpolate(coarse, size=8, mode="bilinear", align_corners=True)


@pytest.fixture
def obs(observe, small_lenet, pixels):
    return observe(small_lenet, as_inputs(pixels[:1]), torch.tensor([2]), mean=MEAN, std=STD)


def test_recovers_an_image_far_better_than_chance(obs, pixels):
    result = inverting_gradients(steps=300, tv=0.001)(obs)
    chance = psnr(torch.rand(1, 3, 8, 8).double(), pixels[:1])
    assert psnr(result.images, pixels[:1]) > chance + 10
    assert result.images.shape == (1, 3, 8, 8)
    assert result.images.min() >= 0
    assert result.images.max() <= 1
    assert result.labels.tolist() == [2]


def test_recovers_a_batch(observe, small_lenet, pixels):
    obs = observe(small_lenet, as_inputs(pixels[:2]), torch.tensor([2, 0]), mean=MEAN, std=STD)
    result = inverting_gradients(steps=300, tv=0.001)(obs)
    assert psnr(result.images, pixels[:2]).min() > 15


@pytest.mark.parametrize("labels", [[2], [2, 0]])
def test_the_objective_is_the_distance_plus_the_prior_on_the_returned_images(
    observe, small_lenet, pixels, labels
):
    obs = observe(small_lenet, as_inputs(pixels[: len(labels)]), torch.tensor(labels), mean=MEAN, std=STD)
    result = inverting_gradients(steps=20, tv=0.3)(obs)
    loss = F.cross_entropy(obs.model(as_inputs(result.images)), result.labels)
    gradients = torch.autograd.grad(loss, list(obs.model.parameters()))
    a, b = (torch.cat([g.flatten() for g in group]) for group in (gradients, obs.update.values()))
    smoothness = colour_variation(4 * (result.images - 0.5)[None])
    expected = 1 - F.cosine_similarity(a, b, dim=0) + 0.3 * len(labels) ** 0.5 * smoothness
    assert result.objective == pytest.approx(expected.item(), rel=1e-9)


def test_more_steps_end_lower(obs):
    few, many = (inverting_gradients(steps=steps)(obs).objective for steps in (5, 100))
    assert many < few


def test_the_same_seed_gives_the_same_images_and_another_seed_others(obs):
    first, again, other = (inverting_gradients(steps=10, seed=seed)(obs) for seed in (0, 0, 1))
    assert torch.equal(first.images, again.images)
    assert first.objective == again.objective
    assert not torch.equal(first.images, other.images)


def test_leaves_the_observation_and_the_global_state_alone(obs):
    obs.model.train()
    obs.model[0].bias.requires_grad_(False)
    before = copy.deepcopy((obs.model.state_dict(), obs.update, obs.labels))
    generator, threads = torch.random.get_rng_state(), torch.get_num_threads()
    inverting_gradients(steps=3, restarts=2)(obs)
    assert obs.model.training
    assert not obs.model[0].bias.requires_grad
    assert all(p.grad is None for p in obs.model.parameters())
    torch.testing.assert_close((obs.model.state_dict(), obs.update, obs.labels), before, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert torch.get_num_threads() == threads


def test_restarts_in_one_graph_are_the_restarts_one_by_one(obs, monkeypatch):
    alone = [inverting_gradients(steps=30, seed=5 + restart)(obs) for restart in range(4)]
    best = min(alone, key=lambda result: result.objective)
    together = inverting_gradients(steps=30, restarts=4, seed=5)(obs)
    assert together.objective == pytest.approx(best.objective, rel=1e-6)
    torch.testing.assert_close(together.images, best.images, atol=1e-5, rtol=0)
    monkeypatch.setattr(matching, "MEMORY_BUDGET", 2 * matching.graph_size(as_problem(obs, who="t")))
    in_two_stacks = inverting_gradients(steps=30, restarts=4, seed=5)(obs)
    torch.testing.assert_close(in_two_stacks.images, best.images, atol=1e-5, rtol=0)


def test_many_observations_at_once_are_each_attacked_as_if_alone(observe, small_lenet, pixels):
    observations = [
        observe(small_lenet, as_inputs(pixels[i : i + 1]), torch.tensor([i]), mean=MEAN, std=STD)
        for i in range(3)
    ]
    attack = inverting_gradients(steps=30)
    for result, obs in zip(attack.many(observations), observations, strict=True):
        alone = attack(obs)
        torch.testing.assert_close(result.images, alone.images, atol=1e-5, rtol=0)
        assert result.labels.tolist() == alone.labels.tolist()
        assert result.notes == alone.notes
    assert attack.many([]) == []


def test_observations_of_different_models_are_not_attacked_at_once(obs):
    other = copy.deepcopy(obs.model)
    nn.init.zeros_(other[0].bias)
    with pytest.raises(ValueError, match="same weights"):
        inverting_gradients(steps=1).many([obs, dataclasses.replace(obs, model=other)])


def test_a_model_that_cannot_be_batched_is_attacked_all_the_same(observe, pixels):
    class Loud(nn.Module):
        def forward(self, x):
            return x * (2.0 if float(x.detach().sum()) > -1e9 else 1.0)

    model = nn.Sequential(Loud(), nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    obs = observe(model, as_inputs(pixels[:1]), torch.tensor([1]), mean=MEAN, std=STD)
    result = inverting_gradients(steps=3, restarts=2)(obs)
    assert any("one by one" in note for note in result.notes)
    assert inverting_gradients(steps=3)(obs).objective >= result.objective


def test_batch_norm_in_train_mode_is_attacked_in_one_graph(observe, pixels):
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)
    ).double()
    obs = observe(copy.deepcopy(model), as_inputs(pixels), torch.arange(4), mean=MEAN, std=STD)
    obs = dataclasses.replace(obs, model=model)
    alone = [inverting_gradients(steps=15, seed=seed)(obs) for seed in range(2)]
    together = inverting_gradients(steps=15, restarts=2)(obs)
    assert not any("one by one" in note for note in together.notes)
    assert together.objective == pytest.approx(min(result.objective for result in alone), rel=1e-6)
    assert model[1].num_batches_tracked == 0


def dual_pruned(obs):
    """Without the largest twentieth and the smaller three quarters of every tensor."""

    def prune(g):
        order = g.abs().flatten().argsort(descending=True)
        kept = torch.zeros(g.numel(), dtype=torch.bool)
        kept[order[g.numel() // 20 : max(g.numel() // 4, 1)]] = True
        return kept.view_as(g)

    sent = {name: prune(g) for name, g in obs.update.items()}
    return dataclasses.replace(
        obs, update={name: g * sent[name] for name, g in obs.update.items()}, sent=sent
    )


def test_an_attacker_who_knows_of_pruning_sees_more(obs, pixels):
    pruned = dual_pruned(obs)
    plain = inverting_gradients(steps=200, tv=0.02)(pruned)
    adaptive = inverting_gradients(steps=200, tv=0.02, adaptive=True)(pruned)
    assert mse(adaptive.images, pixels[:1]) < mse(plain.images, pixels[:1])
    sent = sum(int(mask.sum()) for mask in pruned.sent.values())
    assert any(f"only the {sent} of" in note for note in adaptive.notes)
    unmarked = inverting_gradients(steps=1, adaptive=True)(dataclasses.replace(pruned, sent=None))
    assert any("taken for all that was sent" in note for note in unmarked.notes)


def test_without_pruning_the_adaptive_attacker_is_the_plain_one(obs):
    whole = dataclasses.replace(obs, sent={name: torch.ones_like(g).bool() for name, g in obs.update.items()})
    plain, adaptive = (inverting_gradients(steps=20, adaptive=knows)(whole) for knows in (False, True))
    assert torch.equal(plain.images, adaptive.images)


def test_several_local_steps_are_attacked_by_their_mean_gradient(obs):
    delta = {name: -0.05 * 2 * gradient for name, gradient in obs.update.items()}
    after = dataclasses.replace(obs, update=delta, lr=0.05, local_steps=2)
    attack = inverting_gradients(steps=10)
    torch.testing.assert_close(attack(after).images, attack(obs).images, atol=1e-6, rtol=0)


def test_labels_may_be_inferred(obs):
    blind = dataclasses.replace(obs, labels=None)
    result = inverting_gradients(steps=5)(blind)
    assert result.labels.tolist() == [2]
    assert torch.equal(result.images, inverting_gradients(steps=5)(obs).images)
    assert any("inferred (iDLG)" in note for note in result.notes)


def test_an_update_of_zeros_yields_a_guess_that_is_called_one(obs):
    empty = dataclasses.replace(obs, update={name: torch.zeros_like(g) for name, g in obs.update.items()})
    result = inverting_gradients(steps=5)(empty)
    assert any("nothing to match" in note for note in result.notes)
    assert result.images.isfinite().all()


def test_a_model_of_numbers_that_are_not_finite_yields_no_objective(obs):
    broken = copy.deepcopy(obs.model)
    nn.init.constant_(broken[0].weight, torch.nan)
    result = inverting_gradients(steps=3)(dataclasses.replace(obs, model=broken))
    assert result.objective is None
    assert any("noise" in note for note in result.notes)
    assert any("started anew" in note for note in result.notes)


def test_listeners_hear_of_every_step_of_every_stack(obs, monkeypatch):
    monkeypatch.setattr(matching, "MEMORY_BUDGET", 1)
    heard = []
    inverting_gradients(steps=4, restarts=2)(obs, on_step=lambda *event: heard.append(event[:2]))
    assert heard == [(i, 8) for i in range(1, 9)]


def test_a_time_budget_is_kept_and_noted(obs):
    result = inverting_gradients(steps=100_000, restarts=2, time_budget=0.3)(obs)
    assert any("time budget" in note for note in result.notes)


def test_the_box_spans_all_pixels():
    torch.testing.assert_close(to_pixels(torch.tensor([-2.0, 0.0, 2.0])), torch.tensor([0.0, 0.5, 1.0]))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("restarts", 0),
        ("tv", -0.1),
        ("tv", float("nan")),
        ("lr", 0.0),
        ("lr", float("inf")),
        ("labels", "guess"),
        ("time_budget", 0),
    ],
)
def test_settings_are_checked_when_the_attack_is_made(setting, value):
    with pytest.raises(ValueError, match=f"inverting_gradients: {setting} must be .*, got "):
        inverting_gradients(**{setting: value})
