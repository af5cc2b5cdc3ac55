"""Unsent entries count against a guess that makes them too large, or not large enough."""

import pytest
import torch
from torch import nn

from attacks.optimisation.objectives import cosine_distance, squared_distance
from attacks.optimisation.withheld import Withheld, with_withheld, withheld_entries
from fl_app.transforms import add_gaussian, drop_smallest, keep_topk, prune_aligned, prune_dual
from fl_app.types import Observation, RoundContext

RULES = {
    "keep_topk": (keep_topk(0.2), False),
    "drop_smallest": (drop_smallest(0.5), False),
    "prune_dual": (prune_dual(0.1, 0.5), True),
    "prune_aligned": (prune_aligned(0.3, 0.1), True),
}
NAMES = ("0.weight", "0.bias", "1.weight", "1.bias")


def gradient_of(model: nn.Module, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()
    }


def case(rule: str, seed: int = 1) -> tuple[dict[str, torch.Tensor], Observation]:
    """A gradient, and what the server sees of it: of the last bias, with three entries, all or nothing."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).double()
    gradient = gradient_of(model, seed)
    generator = torch.Generator().manual_seed(seed)
    locations = None
    if rule == "prune_aligned":
        locations = {name: torch.rand(g.shape, generator=generator) < 0.6 for name, g in gradient.items()}
    ctx = RoundContext(round=1, client=0, generator=generator, locations=locations)
    transform, _ = RULES[rule]
    update, _ = transform.apply(gradient, transform.init(gradient), ctx)
    sent = {name: g != 0 for name, g in update.items()}
    return gradient, Observation(model, update, sent=sent, defense=transform.traces, locations=locations)


def flat(update: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([update[name].flatten() for name in NAMES])[None]


def parts_of(rule: str, base=cosine_distance, weight: float = 1.0, seed: int = 1):
    """The true gradient as a row, the distance with the rule and the one without."""
    gradient, obs = case(rule, seed)
    target, sent = flat(obs.update), flat(obs.sent)
    bounds = Withheld(*(side[None] for side in withheld_entries(obs, NAMES)))
    plain = base(target, sent)
    return flat(gradient), with_withheld(plain, target, sent, bounds, weight), plain


def by_hand(guess: torch.Tensor, obs: Observation, two_sided: bool) -> float:
    target, sent = flat(obs.update)[0], flat(obs.sent)[0]
    known = [i for i in range(len(target)) if sent[i]]
    power = sum(float(guess[i]) ** 2 for i in known)
    scale = max(0.0, sum(float(guess[i] * target[i]) for i in known) / power)
    broken, start = 0.0, 0
    for name in NAMES:
        entries = range(start, start + obs.update[name].numel())
        start += len(entries)
        sizes = [abs(float(target[i])) for i in entries if sent[i]]
        located = None if obs.locations is None else obs.locations[name].flatten()
        for i in entries:
            if sent[i] or not sizes or (located is not None and not located[i - entries.start]):
                continue
            size = abs(scale * float(guess[i]))
            excess = max(0.0, size - min(sizes))
            if two_sided:
                excess = min(excess, max(0.0, max(sizes) - size))
            broken += excess**2
    return broken / sum(float(target[i]) ** 2 for i in known)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("base", [cosine_distance, squared_distance])
def test_it_is_the_sum_of_a_plain_loop(rule, base):
    _, obs = case(rule)
    truth, distance, plain = parts_of(rule, base, weight=0.7)
    penalties = []
    for seed in range(20):
        guess = truth + torch.randn(truth.shape, generator=torch.Generator().manual_seed(seed)).double()
        penalties.append(by_hand(guess[0], obs, RULES[rule][1]))
        torch.testing.assert_close(distance(guess), plain(guess) + 0.7 * penalties[-1])
    assert max(penalties) > 0.01


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("seed", range(5))
def test_the_true_gradient_breaks_no_rule_at_any_scale(rule, seed):
    truth, distance, _ = parts_of(rule, seed=seed)
    for scale in (1e-6, 0.1, 1.0, 1e5):
        torch.testing.assert_close(distance(scale * truth), torch.zeros(1).double(), atol=1e-12, rtol=0)


def test_what_dual_pruning_withheld_would_be_too_large_for_topk():
    gradient, obs = case("prune_dual")
    told = Observation(obs.model, obs.update, sent=obs.sent, defense=keep_topk(0.5).traces)
    bounds = Withheld(*(side[None] for side in withheld_entries(told, NAMES)))
    target, sent = flat(obs.update), flat(obs.sent)
    rule = with_withheld(cosine_distance(target, sent), target, sent, bounds, 1.0)
    assert rule(flat(gradient)) > 0.01


def test_a_tensor_of_which_nothing_was_sent_has_no_rule():
    # prune_dual withholds an output bias of fewer than four entries whole
    _, obs = case("prune_dual")
    assert not obs.sent["1.bias"].any()
    low, high = withheld_entries(obs, NAMES)
    assert low[-3:].isinf().all()
    assert high[-3:].isinf().all()
    assert low[:-3].isfinite().any()
    truth, distance, _ = parts_of("prune_dual", squared_distance)
    guess = truth.clone()
    guess[0, -3:] = 1e6
    assert torch.equal(distance(guess), distance(truth))


def test_outside_of_the_locations_nothing_is_known():
    _, obs = case("prune_aligned")
    low, high = withheld_entries(obs, NAMES)
    for bound in (low, high):
        assert bound[~flat(obs.locations)[0]].isinf().all()
    ruled = flat(obs.locations)[0] & ~flat(obs.sent)[0]
    assert low[ruled][:-3].isfinite().any()
    everywhere = Observation(obs.model, obs.update, sent=obs.sent, defense=obs.defense)
    assert withheld_entries(everywhere, NAMES).low.isfinite().sum() > low.isfinite().sum()


def test_without_masks_a_zero_is_taken_for_withheld():
    _, obs = case("keep_topk")
    unmarked = Observation(obs.model, obs.update, defense=obs.defense)
    for one, two in zip(withheld_entries(unmarked, NAMES), withheld_entries(obs, NAMES), strict=True):
        assert torch.equal(one, two)


def test_there_is_no_rule_without_pruning():
    _, obs = case("keep_topk")
    for defense in (None, add_gaussian(0.1).traces):
        assert withheld_entries(Observation(obs.model, obs.update, defense=defense), NAMES) is None


def test_bounds_of_local_steps_are_those_of_their_mean_gradient():
    _, obs = case("prune_dual")
    delta = {name: -0.05 * 4 * g for name, g in obs.update.items()}
    after = Observation(obs.model, delta, sent=obs.sent, defense=obs.defense, lr=0.05, local_steps=4)
    torch.testing.assert_close(withheld_entries(after, NAMES), withheld_entries(obs, NAMES))


@pytest.mark.parametrize("rule", RULES)
def test_its_gradient_is_that_of_finite_differences(rule):
    truth, distance, plain = parts_of(rule, weight=0.3)
    guess = truth + torch.randn(truth.shape, generator=torch.Generator().manual_seed(3)).double()
    assert distance(guess) > plain(guess)
    assert torch.autograd.gradcheck(distance, (guess.requires_grad_(True),))


def test_a_guess_that_points_away_is_not_judged_by_its_sizes():
    truth, distance, plain = parts_of("keep_topk")
    torch.testing.assert_close(distance(-truth), plain(-truth))
