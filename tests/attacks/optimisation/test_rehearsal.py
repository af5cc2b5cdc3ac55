import dataclasses

import pytest
import torch
import torch.nn.functional as F

from attacks.metrics import mse
from attacks.optimisation import inverting_gradients
from attacks.optimisation.rehearsal import best_candidate, rehearsed, set_apart
from fl_app.types import Known


@pytest.fixture
def known() -> Known:
    """Smooth pictures of one kind: 120 mixtures of the same eight."""
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(8, 3, 3, 3, generator=generator).double()
    smooth = F.interpolate(coarse, size=8, mode="bilinear", align_corners=True)
    shares = torch.rand(120, 8, generator=generator).double()
    images = torch.einsum("nk,kchw->nchw", shares / shares.sum(1, keepdim=True), smooth)
    return Known(((images - images.mean()) / images.std() / 6 + 0.5).clamp(0, 1), torch.arange(120) % 4)


@pytest.fixture
def obs(observe, small_lenet, known):
    mine = Known(known.images[20:], known.labels[20:])
    return dataclasses.replace(observe(small_lenet, known.images[:1], known.labels[:1]), known=mine)


def test_images_set_apart_are_not_learnt_from(known):
    rest, apart = set_apart(known, 30)
    both = torch.cat([rest.images, apart.images]).flatten(1)
    assert len(rest.images) == 90
    assert len(torch.unique(both, dim=0)) == 120
    assert set_apart(known, 30)[0] is rest


def test_rehearsed_updates_are_the_clients_own_kind(obs, small_lenet):
    (seen, pixels), *others = rehearsed(obs, 3, who="test")
    loss = F.cross_entropy(small_lenet(pixels), seen.labels)
    for name, gradient in zip(seen.update, torch.autograd.grad(loss, small_lenet.parameters()), strict=True):
        torch.testing.assert_close(seen.update[name], gradient)
    assert len(others) == 2


def test_rehearsed_updates_of_local_steps_are_weight_differences(obs, small_lenet):
    local = dataclasses.replace(obs, local_steps=2, lr=0.05)
    seen, pixels = rehearsed(local, 1, who="test")[0]
    weights = {name: p.detach().clone().requires_grad_() for name, p in small_lenet.named_parameters()}
    for _ in range(2):
        loss = F.cross_entropy(torch.func.functional_call(small_lenet, weights, (pixels,)), seen.labels)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        weights = {
            name: (weight - 0.05 * gradient).detach().requires_grad_()
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
    for name, before in small_lenet.named_parameters():
        torch.testing.assert_close(seen.update[name], (weights[name] - before).detach(), atol=1e-9, rtol=1e-6)


def test_rehearsed_updates_go_through_the_defense_that_is_known(obs):
    halved = dataclasses.replace(obs, defend=lambda update: {name: g / 2 for name, g in update.items()})
    plain, defended = (rehearsed(one, 1, who="test")[0][0].update for one in (obs, halved))
    for name, gradient in plain.items():
        torch.testing.assert_close(defended[name], gradient / 2)


def test_the_best_candidate_wins_and_is_looked_for_once(obs):
    calls = []

    def attack_of(number, steps):
        def attack(observations):
            calls.append((number, steps))
            _, apart = set_apart(obs.known, 2)
            noise = abs(number - 3) * 0.1
            return [
                inverting_gradients(steps=1, prior="variation")(one).__class__(
                    images=(image[None] + noise * torch.randn_like(image)).clamp(0, 1), labels=one.labels
                )
                for one, image in zip(observations, apart.images, strict=True)
            ]

        return attack

    choice = best_candidate(obs, attack_of, 5, steps=120, updates=2, who="test")
    assert choice.number == 3
    assert choice.score == pytest.approx(1)
    assert calls == [(n, 15) for n in range(5)] + [(n, 40) for n in (3, 2, 4)] or len(calls) == 8
    before = len(calls)
    assert best_candidate(obs, attack_of, 5, steps=120, updates=2, who="test") == choice
    assert len(calls) == before


def test_an_attacker_with_images_recovers_more_and_says_how(obs, known):
    alone = dataclasses.replace(obs, known=None)
    plain, learned = inverting_gradients(steps=80)(alone), inverting_gradients(steps=80)(obs)
    assert mse(learned.images, known.images[:1]) < mse(plain.images, known.images[:1]) / 2
    assert any("rehearsed" in note for note in learned.notes)
    assert not any("rehearsed" in note for note in plain.notes)


def test_the_truth_of_the_attacked_update_is_never_asked_for(obs, known):
    """Another client's image with the same labels changes the result; the truth is in no argument."""
    result = inverting_gradients(steps=20)(obs)
    assert torch.equal(result.images, inverting_gradients(steps=20)(obs).images)


@pytest.mark.parametrize(("prior", "has"), [("photographs", False), ("nonsense", True)])
def test_a_prior_without_images_or_of_another_name_is_refused(obs, prior, has):
    with pytest.raises(ValueError, match="prior"):
        inverting_gradients(steps=2, prior=prior)(obs if has else dataclasses.replace(obs, known=None))


def test_too_few_images_for_the_rehearsals_are_refused(obs):
    few = dataclasses.replace(obs, known=Known(obs.known.images[:7], obs.known.labels[:7]))
    with pytest.raises(ValueError, match="rehearsals of 1 images need twice as many"):
        inverting_gradients(steps=2)(few)
