"""What an attacker makes of every defense that it knows."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from omegaconf import OmegaConf
from shipped import shipped
from torch import Tensor, nn

from attacks.metrics import mse
from attacks.optimisation import dlg, gradinversion, inverting_gradients
from attacks.optimisation.adaptation import HEADLESS, RULE, SMOOTHER, informed, informed_recipe
from attacks.optimisation.problem import Problem, as_problem, flatten_update
from fl_app.config.compose import compose
from fl_app.defenses import protect
from fl_app.defenses.ats import public_rewrites
from fl_app.models.bottleneck import add_bottleneck
from fl_app.sketches import coordinate_count, draw_coordinates
from fl_app.training import Batch, Step
from fl_app.transforms import add_gaussian
from fl_app.types import Observation, RoundContext

DEFENSES = shipped("defense")
SMALL = {
    "precode": "defense.size=5",
    "soteria": "defense.rate=0.8",
    "dp_sgd": "defense.noise_multiplier=0.1",
    "fl_basic": "defense.share=0.3",
    "fl_cs": "defense.share=0.3",
    "fl_top": "defense.share=0.3",
}
"""Settings that fit a small model, and an attack that must not take long to build."""
PRUNED = ("adgp", "dgp", "graddrop", "prune", "topk")
SAID = dict.fromkeys(PRUNED, "adaptive: matched only the") | {
    "fl_basic": "were not trained either",
    "fl_cs": "measurements",
    "fl_top": "were not trained either",
    "ats": "adaptive: the rewriting that explains each image best was undone",
    "precode": "adaptive: draws searched for",
    "soteria": "adaptive: matched only the",
    "gaussian": "smoother",
    "laplace": "smoother",
    "outpost": "a late round",
    "sign": "signs",
}
"""What the notes must name, for each defense against which the attacker does something else."""


def pictures(count: int) -> Tensor:
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    return F.interpolate(coarse, size=8, mode="bilinear", align_corners=True)


def lenet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(), nn.Linear(96, 4)
    ).double()


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 20), nn.Sigmoid(), nn.Linear(20, 4)).double()


def read(obs: Observation) -> Problem:
    return as_problem(obs, who="test")


def seen_of(
    overrides: str, model: nn.Module, pixels: Tensor, labels: Tensor, **more: object
) -> tuple[Observation, dict[str, Tensor]]:
    """What the server sees in the first round of a client with a defense of conf/, and its own gradient."""
    node = OmegaConf.to_container(compose(f"{overrides}").defense, resolve=True)
    assert isinstance(node, Mapping)
    defense = protect(part=instantiate(node))
    if defense.model is not None:
        model = add_bottleneck(model, size=node["size"])
    generator = torch.Generator().manual_seed(4)
    step = Step(generator, expected=len(labels), rate=0.1, per_round=1)
    trained = pixels if defense.rules.augment is None else defense.rules.augment(pixels, generator)
    batch = Batch(trained, labels, pixels, trained)
    _, raw = defense.rules.differentiate(model, batch, defense.rules.loss, step)
    raw = {name: gradient.detach() for name, gradient in raw.items()}
    locations = None
    if "adgp" in overrides or "secure_signs" in overrides:
        locations = {name: torch.rand(g.shape, generator=generator) < 0.6 for name, g in raw.items()}
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    ctx = RoundContext(round=1, client=0, generator=generator, weights=weights, locations=locations)
    update, _ = defense.transform.apply(raw, defense.transform.init(raw), ctx)
    if defense.scheme is not None:
        n = sum(gradient.numel() for gradient in raw.values())
        agreed = draw_coordinates(n, coordinate_count(node.get("share", 1), n), seed=4)
        sketch = defense.scheme(n, 4, agreed)
        update = sketch.restore(sketch.take(update), raw)
    facts = {
        "batch_size": len(labels),
        "num_classes": 4,
        "input_shape": (3, 8, 8),
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
        "labels": labels,
        "training": True,
        "round": 1,
        "lr": 0.1,
        "locations": locations,
        "defense": defense.traces,
        "rewrites": public_rewrites(defense.traces),
    }
    sent = {name: entries != 0 for name, entries in update.items()}
    return Observation(model=model, update=update, sent=sent, **facts | more), raw


@pytest.mark.parametrize("name", DEFENSES)
def test_every_defense_is_attacked_by_one_who_knows_it(name):
    pixels = pictures(1)
    obs, _ = seen_of(f"defense={name} {SMALL.get(name, '')}", lenet(), pixels, torch.tensor([2]))
    for attack in (inverting_gradients(steps=3, adaptive=True), dlg(steps=1, adaptive=True)):
        result = attack(obs)
        assert result.images.shape == pixels.shape
        assert result.images.isfinite().all()
        said = [note for note in result.notes if note.startswith("adaptive")]
        assert any(SAID.get(name, "") in note for note in said) or name not in SAID
    plain = inverting_gradients(steps=3)(obs)
    assert not any("adaptive" in note for note in plain.notes)


@pytest.mark.parametrize("attack", [inverting_gradients, dlg, gradinversion])
def test_without_a_defense_the_adaptive_attacker_is_the_plain_one_bit_for_bit(attack):
    model, pixels = lenet(), pictures(2)
    with torch.no_grad():
        model[0].bias[0] = -100.0  # a unit that is off: its gradient is zero, and was sent as such
    obs, _ = seen_of("defense=none", model, pixels, torch.tensor([2, 0]))
    assert not all(mask.all() for mask in obs.sent.values())
    plain, adaptive = (attack(steps=5, restarts=1, adaptive=knows)(obs) for knows in (False, True))
    assert torch.equal(plain.images, adaptive.images)
    assert plain.objective == adaptive.objective
    assert plain.notes == adaptive.notes


@pytest.mark.parametrize(
    "name", ["none", "ats", "fl_cs", "fl_std", "outpost", "bf16", "fp16", "int8", "sign"]
)
def test_zeros_that_are_zeros_are_matched_as_such(name):
    obs, _ = seen_of(f"defense={name} {SMALL.get(name, '')}", lenet(), pictures(1), torch.tensor([2]))
    obs, problem = informed(obs, read)
    assert not informed_recipe(inverting_gradients().recipe(problem, [obs]), obs, problem).masked


@pytest.mark.parametrize("name", [*PRUNED, "fl_basic", "fl_top", "soteria", "precode"])
def test_zeros_that_were_withheld_are_not_matched(name):
    obs, _ = seen_of(f"defense={name} {SMALL.get(name, '')}", lenet(), pictures(1), torch.tensor([2]))
    _, problem = informed(obs, read)
    assert not problem.sent.all()
    assert informed_recipe(inverting_gradients().recipe(problem, [obs]), obs, problem).masked


def test_a_defense_that_is_not_known_may_have_withheld_what_is_zero():
    obs, _ = seen_of("defense=topk", lenet(), pictures(1), torch.tensor([2]))
    unknown = replace(obs, defense=None)
    _, problem = informed(unknown, read)
    assert problem.withheld is None
    assert informed_recipe(inverting_gradients().recipe(problem, [unknown]), unknown, problem).masked


@pytest.mark.parametrize("name", ["dgp", "topk", "adgp", "graddrop"])
def test_linear_layers_are_completed_to_the_true_gradient(name):
    # the first layer's 3860 entries hang on 193 + 20 numbers, if there is a survivor in row and column
    obs, raw = seen_of(f"defense={name}", mlp(), pictures(1), torch.tensor([2]))
    seen, problem = informed(obs, read)
    truth = flatten_update(raw, problem.names)
    travelled = flatten_update(obs.sent, problem.names).bool()
    completed = problem.sent & ~travelled
    assert completed.sum() > 500
    torch.testing.assert_close(problem.target[problem.sent], truth[problem.sent], rtol=1e-3, atol=1e-8)
    assert torch.equal(flatten_update(seen.sent, problem.names).bool(), problem.sent)
    assert any(note.startswith("adaptive: 1.weight completed to rank 1") for note in problem.notes)
    plain = read(obs)
    assert torch.equal(plain.sent, travelled)


def test_completed_layers_bring_the_image_nearer():
    pixels = pictures(1)
    obs, _ = seen_of("defense=dgp", mlp(), pixels, torch.tensor([2]))
    plain, adaptive = (dlg(steps=20, labels="granted", adaptive=knows)(obs) for knows in (False, True))
    assert mse(adaptive.images, pixels) < 0.6 * mse(plain.images, pixels)


@pytest.mark.parametrize("later", [2, None])
def test_after_the_first_round_feedback_spoils_completion_and_rule(later):
    obs, _ = seen_of("defense=dgp", mlp(), pictures(1), torch.tensor([2]))
    _, first = informed(obs, read)
    assert first.withheld is not None
    _, second = informed(replace(obs, round=later), read)
    assert second.withheld is None
    assert torch.equal(second.sent, read(obs).sent)
    assert torch.equal(second.target, read(obs).target)
    assert not any("completed" in note for note in second.notes)
    ablation, _ = seen_of(
        "defense=dgp defense.error_feedback=false", mlp(), pictures(1), torch.tensor([2]), round=later
    )
    _, every = informed(ablation, read)
    assert every.withheld is not None
    assert every.sent.sum() > read(ablation).sent.sum()


def test_the_rule_is_that_of_what_travelled_not_of_what_was_completed():
    obs, _ = seen_of("defense=dgp", mlp(), pictures(1), torch.tensor([2]))
    _, problem = informed(obs, read)
    name = "1.weight"
    (start,) = [sum(problem.sizes[:i]) for i, n in enumerate(problem.names) if n == name]
    sizes = obs.update[name].abs()[obs.sent[name]]
    own = slice(start, start + obs.update[name].numel())
    withheld = ~obs.sent[name].flatten()
    assert (problem.withheld.low[own][withheld] == sizes.min()).all()
    assert (problem.withheld.high[own][withheld] == sizes.max()).all()


@pytest.mark.parametrize(
    "name", ["dgp defense.error_feedback=false", "graddrop defense.error_feedback=false", "gaussian"]
)
def test_a_local_step_is_met_as_the_gradient_that_it_amounts_to(name):
    obs, _ = seen_of(f"defense={name}", lenet(), pictures(1), torch.tensor([2]))
    settings = obs.defense
    if name == "gaussian":
        # noise of the update is noise of the gradient, scaled like it
        settings = add_gaussian(0.01 * 0.1).traces
    delta = {entry: -0.1 * gradient for entry, gradient in obs.update.items()}
    after = replace(obs, update=delta, local_steps=1, defense=settings)
    attack = inverting_gradients(steps=10, adaptive=True)
    torch.testing.assert_close(attack(after).images, attack(obs).images, atol=1e-6, rtol=0)


def test_the_noisier_an_update_the_smoother_the_images():
    obs, _ = seen_of("defense=gaussian", lenet(), pictures(1), torch.tensor([2]))
    _, problem = informed(obs, read)
    power = float(torch.cat([g.flatten() for g in obs.update.values()]).square().mean())
    (weight, _), *_ = (recipe := inverting_gradients().recipe(problem, [obs])).priors
    for std in (0.0, 0.5 * power**0.5, 100.0):
        told = replace(obs, defense=add_gaussian(std).traces)
        (found, _), *_ = informed_recipe(recipe, told, problem).priors
        share = min(1.0, std**2 / power)
        assert found == pytest.approx(weight * (1 + SMOOTHER * share))


@pytest.mark.parametrize(("name", "factor"), [("dgp", 1 + HEADLESS), ("topk", 1.0), ("none", 1.0)])
def test_where_the_largest_entries_are_missing_smoothness_counts_more(name, factor):
    obs, _ = seen_of(f"defense={name}", lenet(), pictures(1), torch.tensor([2]))
    _, problem = informed(obs, read)
    recipe = inverting_gradients().recipe(problem, [obs])
    told = informed_recipe(recipe, obs, problem)
    assert [weight for weight, _ in told.priors] == pytest.approx(
        [factor * weight for weight, _ in recipe.priors]
    )
    assert told.withheld == RULE


def test_signs_are_matched_with_signs():
    obs, raw = seen_of("defense=sign", lenet(), pictures(1), torch.tensor([2]))
    _, problem = informed(obs, read)
    recipe = inverting_gradients().recipe(problem, [obs])
    told = informed_recipe(recipe, obs, problem)
    truth = flatten_update(raw, problem.names)[None]
    distance = told.matching(problem.target[None], None)
    torch.testing.assert_close(distance(truth), distance(7 * truth))
    assert distance(truth) < 0.5 * distance(-truth)
    # the sizes within a tensor, which were not sent, count for little
    assert distance(truth.sign()) < 2 * distance(truth)


def test_a_model_that_draws_is_met_also_where_signs_are_sent():
    model = add_bottleneck(lenet(), size=5)
    obs, _ = seen_of("defense=sign", model, pictures(1), torch.tensor([2]))
    _, problem = informed(obs, read)
    told = informed_recipe(inverting_gradients().recipe(problem, [obs]), obs, problem)
    assert told.draws == ("3.bottleneck.given_draws",)
    assert told.masked
    result = inverting_gradients(steps=2, adaptive=True)(obs)
    assert result.images.isfinite().all()


def test_rewritten_images_are_rewritten_back():
    invert = 47
    pixels = pictures(2)
    obs, _ = seen_of(f"defense=ats defense.policies=[[{invert}]]", mlp(), pixels, torch.tensor([2, 0]))
    assert len(obs.rewrites) == 1
    plain, adaptive = (dlg(steps=60, labels="granted", adaptive=knows)(obs) for knows in (False, True))
    torch.testing.assert_close(plain.images, 1 - pixels, atol=0.02, rtol=0)
    assert (mse(adaptive.images, pixels) < 0.1 * mse(plain.images, pixels)).all()
    assert any("invert" in note for note in adaptive.notes)


def test_observations_of_clients_with_a_rule_are_attacked_as_if_alone():
    model, pixels = lenet(), pictures(2)
    seen = [seen_of("defense=dgp", model, pixels[i : i + 1], torch.tensor([i]))[0] for i in range(2)]
    attack = inverting_gradients(steps=10, adaptive=True)
    for result, obs in zip(attack.many(seen), seen, strict=True):
        alone = attack(obs)
        torch.testing.assert_close(result.images, alone.images, atol=1e-5, rtol=0)
        assert result.notes == alone.notes
