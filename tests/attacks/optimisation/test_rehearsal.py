import dataclasses

import pytest
import torch
import torch.nn.functional as F

from attacks.base import Reconstruction
from attacks.metrics import mse
from attacks.optimisation import gradinversion, inverting_gradients
from attacks.optimisation.rehearsal import rehearse, rehearsed, set_apart
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pretender:
    """An attack that knows the answer up to noise, least with the settings ``amount`` 3 and ``fine``."""

    answers: dict
    calls: list
    amount: float = 0.0
    fine: bool = False
    steps: int = 120
    restarts: int = 1
    trace: int = 0
    time_budget: float | None = None
    who = "pretender"

    def options(self):
        return [dataclasses.replace(self, amount=float(number)) for number in range(5)]

    def refinements(self):
        return [dataclasses.replace(self, fine=True)]

    def search(self, observations):
        self.calls.append((self.amount, self.fine, self.steps))
        spread = 0.1 * abs(self.amount - 3) + (0.0 if self.fine else 0.02)
        noise = torch.Generator().manual_seed(0)
        images = self.answers["images"]
        return [
            Reconstruction((i[None] + spread * torch.randn(i.shape, generator=noise)).clamp(0, 1))
            for i in images
        ]

    def __repr__(self):
        return f"Pretender({self.steps})"


def test_the_best_settings_win_and_are_looked_for_once(obs):
    calls = []
    attack = Pretender(answers={"images": set_apart(obs.known, 2)[1].images}, calls=calls)
    chosen, score = rehearse(attack, obs, updates=2, budget=100.0)
    assert (chosen.amount, chosen.fine) == (3.0, True)
    assert score == pytest.approx(1)
    assert calls == [(n, False, 15) for n in range(5)] + [(n, False, 40) for n in calls_of(calls)] + [
        (3.0, False, 40),
        (3.0, True, 40),
    ]
    before = len(calls)
    assert rehearse(attack, obs, updates=2, budget=100.0) == (chosen, score)
    assert len(calls) == before


def calls_of(calls):
    return [amount for amount, _, steps in calls if steps == 40][:3]


def test_a_budget_limits_the_steps_of_all_rehearsals(obs):
    calls = []
    attack = Pretender(answers={"images": set_apart(obs.known, 2)[1].images}, calls=calls, steps=1200)
    rehearse(attack, obs, updates=2, budget=1.0)
    taken = 2 * sum(steps for _, _, steps in calls)
    assert 0.9 * 1200 < taken < 1.1 * 1200


@pytest.mark.parametrize(
    "attack", [inverting_gradients(steps=1), gradinversion(steps=1, restarts=1)], ids=str
)
def test_every_search_with_weights_states_what_it_would_try(attack):
    options = attack.options()
    assert len(options) >= 6
    assert len({repr(one) for one in options}) == len(options)
    assert all(one.refinements() for one in options)
    assert {type(one) for one in options} == {type(attack)}


def test_gradinversion_rehearses_too(obs):
    result = gradinversion(steps=10, restarts=2)(obs)
    assert any("rehearsed on 4 updates" in note for note in result.notes)
    alone = gradinversion(steps=10, restarts=2, rehearsals=0)(obs)
    assert not any("rehearsed" in note for note in alone.notes)


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
