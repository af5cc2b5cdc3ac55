import copy
import dataclasses
import importlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import gradcheck

from attacks.metrics import psnr
from attacks.optimisation import gradinversion, matching
from attacks.optimisation.batch_statistics import use_batch_statistics
from attacks.optimisation.priors import squared_length, total_variation
from attacks.optimisation.problem import as_problem
from attacks.optimisation.statistics_prior import ChannelStatistics, known_statistics, statistics_prior


class Unbatchable(nn.Module):
    def forward(self, x):
        return x * (2.0 if float(x.detach().sum()) > -1e9 else 1.0)


def make_model(momentum: float | None = 0.1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6, momentum=momentum),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, stride=2),
        nn.BatchNorm2d(5, momentum=momentum),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(45, 4),
    ).double()


@pytest.fixture
def pixels() -> torch.Tensor:
    coarse = torch.rand(4, 3, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    return F.interpolate(coarse, size=8, mode="bilinear", align_corners=True)


@pytest.fixture
def model() -> nn.Module:
    """Moved by a few batches, so that its running statistics say something."""
    built = make_model()
    with torch.no_grad():
        for _ in range(5):
            built(2 * torch.rand(16, 3, 8, 8).double())
    return built


@pytest.fixture
def step(observe):
    """What the server sees of one step in train mode of a client that sends its buffers."""

    def make(model, inputs, labels, **more):
        client = copy.deepcopy(model).train()
        gradients = observe(copy.deepcopy(client), inputs, labels).update
        with torch.no_grad():
            client(inputs)
        sent = {name: buffer.clone() for name, buffer in client.named_buffers()}
        seen = observe(copy.deepcopy(client), inputs, labels)
        return dataclasses.replace(seen, model=model, update=gradients, **{"buffers": sent} | more)

    return make


@pytest.fixture
def obs(step, model, pixels):
    return step(model, pixels, torch.arange(4))


def by_hooks(model, inputs):
    """Mean and unbiased variance of what enters each BatchNorm layer in train mode, by torch alone."""
    seen = {}
    client = copy.deepcopy(model).train()
    for name, module in client.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda _, x, name=name: seen.__setitem__(name, x[0].detach()))
    client(inputs)
    return {name: (x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), unbiased=True)) for name, x in seen.items()}


@pytest.mark.parametrize("momentum", [0.1, 0.7, None])
@pytest.mark.parametrize("before", [0, 3])
def test_the_batchs_own_statistics_are_solved_from_the_buffers_sent(step, pixels, momentum, before):
    model = make_model(momentum)
    with torch.no_grad():
        for _ in range(before):
            model(torch.rand(4, 3, 8, 8).double())
    obs = step(model, pixels, torch.arange(4))
    statistics, note = known_statistics(obs)
    expected = by_hooks(model, pixels)
    assert statistics.keys() == expected.keys()
    for name, (mean, variance) in expected.items():
        torch.testing.assert_close(statistics[name].mean, mean)
        torch.testing.assert_close(statistics[name].variance, variance)
    assert "client's own batch" in note


def test_without_counts_the_number_of_steps_is_the_one_granted(obs):
    bare = {name: b for name, b in obs.buffers.items() if "num_batches" not in name}
    counted, _ = known_statistics(obs)
    assumed, _ = known_statistics(dataclasses.replace(obs, buffers=bare))
    torch.testing.assert_close(assumed["1"].mean, counted["1"].mean)
    several, note = known_statistics(dataclasses.replace(obs, buffers=bare, local_steps=3, lr=0.1))
    assert "3 passes" in note
    assert not torch.allclose(several["1"].mean, counted["1"].mean)


def test_several_passes_of_one_batch_are_solved_too(obs, model, pixels):
    client = copy.deepcopy(model).train()
    with torch.no_grad():
        for _ in range(3):
            client(pixels)
    statistics, note = known_statistics(dataclasses.replace(obs, buffers=dict(client.named_buffers())))
    torch.testing.assert_close(statistics["4"].variance, by_hooks(model, pixels)["4"][1])
    assert "3 passes" in note


@pytest.mark.parametrize("case", ["none sent", "eval mode", "frozen layers"])
def test_else_the_running_statistics_are_used(obs, model, case):
    changes = {
        "none sent": {"buffers": None},
        "eval mode": {"buffers": None, "training": False},
        "frozen layers": {"buffers": dict(model.named_buffers())},
    }[case]
    statistics, note = known_statistics(dataclasses.replace(obs, **changes))
    assert torch.equal(statistics["1"].mean, model[1].running_mean)
    assert torch.equal(statistics["4"].variance, model[4].running_var)
    assert "running statistics" in note


@pytest.mark.parametrize("case", ["untrained", "no BatchNorm"])
def test_without_useful_statistics_the_prior_is_off_and_the_result_says_so(
    observe, pixels, small_lenet, case
):
    fresh = make_model() if case == "untrained" else small_lenet
    seen = observe(copy.deepcopy(fresh), pixels, torch.arange(4))
    obs = dataclasses.replace(seen, model=fresh)
    with_prior, without = (gradinversion(steps=3, restarts=2, statistics=bn)(obs) for bn in (5.0, 0.0))
    assert any("prior off" in note and "fails" in note for note in with_prior.notes)
    assert torch.equal(with_prior.images, without.images)
    assert any("weight is 0" in note for note in without.notes)


def plain_penalty(model, inputs, target):
    layers = []
    for name, (mean, variance) in by_hooks(model, inputs).items():
        goal = target[name]
        wide, narrow = (variance + goal.eps).sqrt(), (goal.variance + goal.eps).sqrt()
        layers.append((((mean - goal.mean) / narrow) ** 2 + (wide / narrow - 1) ** 2).mean())
    return torch.stack(layers).mean()


@pytest.fixture
def targets() -> list[dict[str, ChannelStatistics]]:
    def one() -> dict[str, ChannelStatistics]:
        return {
            name: ChannelStatistics(torch.randn(size).double(), torch.rand(size).double() + 0.1, 1e-5)
            for name, size in (("1", 6), ("4", 5))
        }

    return [one() for _ in range(3)]


def as_attacked(model, training):
    inner = copy.deepcopy(model).train(training)
    if training:
        use_batch_statistics(inner)
    return inner


def test_the_prior_is_what_hooks_in_a_loop_measure(model, targets):
    guesses = torch.randn(3, 2, 3, 8, 8).double()
    found = statistics_prior(as_attacked(model, True), targets, guesses)(guesses)
    expected = [plain_penalty(model, g, t) for g, t in zip(guesses, targets, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("training", [True, False])
def test_the_prior_is_zero_at_the_truth_and_only_depends_on_the_guess_itself(model, targets, training):
    guesses = torch.randn(3, 2, 3, 8, 8).double()
    inner = as_attacked(model, training)
    together = statistics_prior(inner, targets, guesses)(guesses)
    alone = [statistics_prior(inner, [t], g[None])(g[None]) for g, t in zip(guesses, targets, strict=True)]
    torch.testing.assert_close(together, torch.cat(alone))
    seen = by_hooks(model, guesses[0])
    truth = {name: ChannelStatistics(mean, variance, 1e-5) for name, (mean, variance) in seen.items()}
    if training:
        assert statistics_prior(inner, [truth], guesses[:1])(guesses[:1]) < 1e-20
    assert together.min() > 0.01


@pytest.mark.parametrize("training", [True, False])
def test_the_prior_has_the_slope_of_finite_differences(model, targets, training):
    guesses = torch.randn(2, 2, 3, 8, 8).double().requires_grad_(True)
    penalty = statistics_prior(as_attacked(model, training), targets[:2], guesses.detach())
    assert gradcheck(penalty, guesses, fast_mode=True)


def test_a_guess_without_statistics_has_no_penalty_beside_others_that_have(model, targets):
    guesses = torch.randn(3, 2, 3, 8, 8).double()
    inner = as_attacked(model, True)
    whole = statistics_prior(inner, targets, guesses)(guesses)
    part = statistics_prior(inner, [targets[0], {}, targets[2]], guesses)(guesses)
    torch.testing.assert_close(part, whole * torch.tensor([1, 0, 1]))


def test_a_model_that_cannot_be_batched_is_measured_one_by_one(model, targets):
    guesses = torch.randn(3, 2, 3, 8, 8).double()
    loud = as_attacked(model, True)
    expected = statistics_prior(loud, targets, guesses)(guesses / 1.0)
    loud[0] = nn.Sequential(loud[0], Unbatchable())
    with torch.no_grad():
        loud[0][0].weight /= 2
        loud[0][0].bias /= 2
    torch.testing.assert_close(statistics_prior(loud, targets, guesses)(guesses), expected)


def test_measuring_leaves_no_hooks_behind(model, targets):
    inner = as_attacked(model, True)
    guesses = torch.randn(3, 2, 3, 8, 8).double()
    statistics_prior(inner, targets, guesses)(guesses)
    assert not any(module._forward_pre_hooks for module in inner.modules())


def test_the_objective_is_the_relative_distance_plus_the_three_priors_without_the_group(obs, model):
    result = gradinversion(steps=12, restarts=3, tv=0.3, l2=0.2, statistics=0.7, group=5.0)(obs)
    client = copy.deepcopy(model).train()
    loss = F.cross_entropy(client(result.images), result.labels)
    gradients = torch.autograd.grad(loss, list(client.parameters()))
    a, b = (torch.cat([g.flatten() for g in group]) for group in (gradients, obs.update.values()))
    images = 4 * (result.images - 0.5)[None]
    expected = (a - b).square().sum() / b.square().sum()
    expected = expected + 0.3 * total_variation(images) + 0.2 * squared_length(images)
    expected = expected + 0.7 * plain_penalty(model, result.images, known_statistics(obs)[0])
    assert result.objective == pytest.approx(expected.item(), rel=1e-6)


def test_statistics_of_the_batch_bring_the_images_nearer(obs, pixels):
    # little smoothing: these pictures are so smooth that the default would all but draw them by itself
    without, informed = (
        gradinversion(steps=150, restarts=1, tv=1e-4, statistics=bn)(obs) for bn in (0.0, 10.0)
    )
    assert psnr(informed.images, pixels).mean() > psnr(without.images, pixels).mean() + 0.5


def test_the_statistics_come_nearer_to_the_batchs_own_during_the_search(obs, model):
    target = known_statistics(obs)[0]
    short, long = (gradinversion(steps=steps, restarts=1, tv=0.0, statistics=10.0)(obs) for steps in (1, 150))
    first, last = (plain_penalty(model, result.images, target) for result in (short, long))
    assert last < 0.1 * first


@pytest.mark.parametrize("training", [True, False])
def test_a_search_that_starts_at_the_truth_stays_there(step, observe, model, pixels, training, monkeypatch):
    labels = torch.tensor([2, 0, 3, 0])
    obs = step(model, pixels, labels) if training else observe(model.eval(), pixels, labels)
    # the package's attribute of that name is the function, which hides the module
    module = importlib.import_module("attacks.optimisation.gradinversion")
    monkeypatch.setattr(module, "draw_images", lambda *_: 4 * (pixels - 0.5))
    result = gradinversion(steps=20, restarts=1, tv=0.0, l2=0.0, statistics=float(training))(obs)
    assert result.objective < 1e-20
    torch.testing.assert_close(result.images, pixels)


def test_recovers_one_image_far_better_than_chance(observe, small_lenet, pixels):
    obs = observe(small_lenet, pixels[:1], torch.tensor([2]))
    result = gradinversion(steps=150, restarts=1, tv=0.001)(obs)
    assert psnr(result.images, pixels[:1]) > psnr(torch.full_like(pixels[:1], 0.5), pixels[:1]) + 5
    assert result.labels.tolist() == [2]


def test_restarts_that_do_not_know_of_each_other_are_the_restarts_one_by_one(obs):
    alone = [gradinversion(steps=10, restarts=1, seed=5 + r)(obs) for r in range(3)]
    best = min(alone, key=lambda result: result.objective)
    together = gradinversion(steps=10, restarts=3, seed=5, group=0)(obs)
    assert together.objective == pytest.approx(best.objective, rel=1e-6)
    torch.testing.assert_close(together.images, best.images, atol=1e-5, rtol=0)
    assert not any("one by one" in note for note in together.notes)


def test_many_observations_at_once_are_each_attacked_as_if_alone(step, model, pixels):
    observations = [
        step(model, pixels[:2], torch.tensor([0, 1])),
        step(model, pixels[2:], torch.tensor([3, 3])),
        step(model, pixels[1:3], torch.tensor([2, 0]), buffers=None),
    ]
    attack = gradinversion(steps=10, restarts=3, statistics=1.0, group=1.0)
    for result, obs in zip(attack.many(observations), observations, strict=True):
        alone = attack(obs)
        torch.testing.assert_close(result.images, alone.images, atol=1e-5, rtol=0)
        assert result.notes == alone.notes
    assert attack.many([]) == []


def test_groups_draw_restarts_together(obs):
    def spread(group):
        problem = as_problem(obs, who="t")
        solution = matching.match_gradients(
            [problem],
            [obs.labels],
            gradinversion(steps=60, restarts=3, group=group).recipe(problem, [obs]),
            restarts=3,
            seed=0,
        )[0]
        images = solution.variables["images"]
        return (images - images.mean(dim=0)).square().mean()

    assert spread(20.0) < 0.5 * spread(0.0)


def test_stacks_do_not_split_a_group(step, model, pixels, monkeypatch):
    observations = [step(model, pixels[i : i + 2], torch.tensor([0, i])) for i in range(3)]
    attack = gradinversion(steps=8, restarts=2, group=5.0)
    expected = attack.many(observations)
    size = matching.graph_size(as_problem(observations[0], who="t"))
    monkeypatch.setattr(matching, "MEMORY_BUDGET", 3 * size)
    heard = []
    found = attack.many(observations, on_step=lambda *event: heard.append(event[:2]))
    assert heard[-1] == (24, 24)  # three stacks of two, not two of three
    for result, other in zip(found, expected, strict=True):
        torch.testing.assert_close(result.images, other.images, atol=1e-5, rtol=0)


def test_groups_too_large_for_the_memory_are_left_alone_with_a_note(obs, monkeypatch):
    monkeypatch.setattr(matching, "MEMORY_BUDGET", 1)
    result = gradinversion(steps=5, restarts=2, group=5.0)(obs)
    assert any("1 of 2 restarts" in note for note in result.notes)
    torch.testing.assert_close(result.images, gradinversion(steps=5, restarts=2, group=0)(obs).images)


def test_labels_may_be_inferred(obs):
    result = gradinversion(steps=2)(dataclasses.replace(obs, labels=None))
    assert sorted(result.labels.tolist()) == [0, 1, 2, 3]
    assert any("inferred (Yin)" in note for note in result.notes)


def test_an_attacker_who_knows_of_pruning_matches_what_was_sent(obs):
    sent = {name: torch.rand_like(g) < 0.5 for name, g in obs.update.items()}
    pruned = dataclasses.replace(
        obs, sent=sent, update={name: g * sent[name] for name, g in obs.update.items()}
    )
    plain, adaptive = (gradinversion(steps=20, adaptive=knows)(pruned) for knows in (False, True))
    assert any("adaptive" in note for note in adaptive.notes)
    assert adaptive.objective < plain.objective


def test_leaves_the_observation_and_the_global_state_alone(obs):
    before = copy.deepcopy((obs.model.state_dict(), obs.update, obs.labels, obs.buffers))
    generator = torch.random.get_rng_state()
    gradinversion(steps=3)(obs)
    after = (obs.model.state_dict(), obs.update, obs.labels, obs.buffers)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), generator)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("steps", 0),
        ("restarts", 0),
        ("tv", -0.1),
        ("l2", float("nan")),
        ("statistics", -1),
        ("group", float("inf")),
        ("lr", 0.0),
        ("labels", "guess"),
        ("time_budget", 0),
    ],
)
def test_settings_are_checked_when_the_attack_is_made(setting, value):
    with pytest.raises(ValueError, match=f"gradinversion: {setting} must be .*, got "):
        gradinversion(**{setting: value})
