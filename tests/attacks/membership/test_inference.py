"""Membership attacks against models and updates whose members are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks.membership import infer_members
from attacks.membership.curve import area, area_interval
from attacks.membership.decomposition import parts_of
from attacks.membership.references import lira, rmia
from attacks.membership.signals import log_odds, logits_of, losses, model_inputs, record_gradients
from fl_app.types import Inquiry, Observation, Records, Shadow, Trace

CLASSES, FEATURES = 4, 20
PLAIN = infer_members(adaptive=False)


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, CLASSES))


def records(count, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, FEATURES, generator=generator)
    # labels that nothing predicts: a model knows them by heart or not at all
    return Records(inputs, torch.randint(CLASSES, (count,), generator=generator))


def fit(model, shown, steps=150, lr=0.05):
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(shown.inputs), shown.labels).backward()
        optimiser.step()
    return model


def joined(*parts):
    return Records(torch.cat([p.inputs for p in parts]), torch.cat([p.labels for p in parts]))


def update_of(model, shown):
    loss = F.cross_entropy(model(shown.inputs), shown.labels)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return {name: g for (name, _), g in zip(model.named_parameters(), gradients, strict=True)}


def observation(model, update, **more):
    return Observation(model, update, lr=0.1, num_classes=CLASSES, **more)


def test_a_memorising_model_is_found_by_its_final_state_alone():
    candidates, members = records(60, 1), torch.arange(60) % 2 == 0
    model = fit(net(), candidates.take(members))
    scores = PLAIN(Inquiry(candidates, model)).scores
    assert set(scores) == {"loss"}
    assert area(scores["loss"], members) > 0.95


def test_one_record_that_was_repeated_stands_out_of_all_others():
    others, candidates = records(100, 2), records(20, 3)
    model = fit(net(), joined(others, *[candidates.take(torch.tensor([7]))] * 30))
    assert int(PLAIN(Inquiry(candidates, model)).scores["loss"].argmax()) == 7


def test_a_model_trained_without_the_candidates_gives_a_guess_by_every_statistic():
    candidates, coins = records(120, 4), torch.rand(120, generator=torch.Generator().manual_seed(0)) < 0.5
    others = records(60, 5)
    model = fit(net(), others, steps=30)
    rounds = [observation(net(seed), update_of(net(seed), others)) for seed in (1, 2)]
    shadows = [
        Shadow(fit(net(), joined(records(40, 6 + i), candidates.take(half)), steps=30), half)
        for i, half in enumerate((torch.arange(120) < 60, torch.arange(120) >= 60))
    ]
    inquiry = Inquiry(candidates, model, rounds, records(80, 9), shadows)
    scores = PLAIN(inquiry).scores
    assert set(scores) == {
        *("loss", "loss_drop", "alignment", "centred_alignment", "decomposition", "lira", "rmia")
    }
    # 7 statistics: one interval of 99.9 % each
    for values in scores.values():
        low, high = area_interval(area(values, coins), int(coins.sum()), int((~coins).sum()), 0.999)
        assert low <= 0.5 <= high


def test_members_of_a_batch_are_told_from_its_gradient_and_from_a_pruned_one():
    candidates, members = records(40, 1), torch.arange(40) < 20
    model, public = net(), records(50, 2)
    batch = joined(candidates.take(members), records(12, 3))
    update = update_of(model, batch)
    whole = PLAIN(Inquiry(candidates, model, [observation(model, update)], public)).scores
    assert area(whole["decomposition"], members) > 0.95
    assert area(whole["alignment"], members) > 0.6
    pruned = {name: t * (t.abs() >= t.abs().flatten().quantile(0.5)) for name, t in update.items()}
    seen = observation(model, pruned, sent={name: t != 0 for name, t in pruned.items()})
    trace = (Trace(withheld="small", kept=0.5),)
    scores = infer_members()(Inquiry(candidates, model, [seen], public, defense=trace)).scores
    assert area(scores["decomposition"], members) > 0.85


def test_local_steps_count_as_their_mean_gradient():
    candidates, model = records(30, 1), net()
    gradient = update_of(model, joined(candidates.take(torch.arange(15)), records(12, 3)))
    as_gradient = observation(model, gradient)
    as_change = observation(model, {name: -0.1 * 3 * g for name, g in gradient.items()}, local_steps=3)
    one, other = (
        PLAIN(Inquiry(candidates, model, [seen], records(20, 2))).scores for seen in (as_gradient, as_change)
    )
    for name in ("alignment", "centred_alignment", "decomposition"):
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-4)


def test_the_decomposition_is_least_squares_with_its_standard_errors():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(8, 200, generator=generator, dtype=torch.float64)
    update = rows[:3].sum(dim=0) + 0.1 * torch.randn(200, generator=generator, dtype=torch.float64)
    found = parts_of(update, rows[:5], rows[5:])
    design = rows.numpy().T
    weights, rest, *_ = np.linalg.lstsq(design, update.numpy(), rcond=None)
    errors = np.sqrt(rest[0] / (200 - 8) * np.diag(np.linalg.inv(design.T @ design)))
    np.testing.assert_allclose(found.numpy(), (weights / errors)[:5], rtol=1e-3)
    assert found[:3].min() > 50 > found[3:].abs().max()


def test_gradients_of_single_records_are_those_of_autograd():
    model, shown = net(), records(5, 1)
    names = [name for name, _ in model.named_parameters()]
    found = torch.cat(list(record_gradients(model, shown.inputs, shown.labels, names)))
    for row, gradients in enumerate(found):
        alone = update_of(model, shown.take(torch.tensor([row])))
        expected = torch.cat([alone[name].flatten() for name in names])
        torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-6)


def test_rmia_is_its_definition_pair_by_pair():
    generator = torch.Generator().manual_seed(3)
    target, public = torch.rand(6, generator=generator), torch.rand(9, generator=generator)
    shadows, public_shadows = torch.rand(4, 6, generator=generator), torch.rand(4, 9, generator=generator)
    members = torch.tensor([[1, 1, 0, 0, 1, 0], [0, 0, 1, 1, 0, 1]] * 2, dtype=torch.bool)
    found = rmia(target, shadows, members, public, public_shadows, gamma=1.2)
    for x in range(6):
        inside = [shadows[k, x] for k in range(4) if members[k, x]]
        outside = [shadows[k, x] for k in range(4) if not members[k, x]]
        usual = (sum(inside) / len(inside) + sum(outside) / len(outside)) / 2
        wins = [target[x] / usual > 1.2 * public[z] / public_shadows[:, z].mean() for z in range(9)]
        assert float(found[x]) == pytest.approx(sum(map(float, wins)) / 9)


def test_lira_is_the_ratio_of_two_normals_with_one_variance():
    generator = torch.Generator().manual_seed(4)
    members = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=torch.bool)
    shadows = torch.randn(4, 3, generator=generator, dtype=torch.float64) + 2 * members
    target = torch.randn(3, generator=generator, dtype=torch.float64)
    found = lira(target, shadows, members)
    inside = torch.stack([shadows[members[:, i], i].mean() for i in range(3)])
    outside = torch.stack([shadows[~members[:, i], i].mean() for i in range(3)])
    rest = torch.where(members, shadows - inside, shadows - outside)
    deviation = (rest.square().sum() / (12 - 6)).sqrt()
    expected = torch.distributions.Normal(inside, deviation).log_prob(target) - torch.distributions.Normal(
        outside, deviation
    ).log_prob(target)
    torch.testing.assert_close(found, expected)


def test_log_odds_and_losses_agree_with_probabilities():
    model, shown = net(), records(7, 1)
    logits = logits_of(model, shown.inputs)
    chances = logits.softmax(dim=1)[torch.arange(7), shown.labels]
    torch.testing.assert_close(log_odds(logits, shown.labels), (chances / (1 - chances)).log())
    torch.testing.assert_close(losses(logits, shown.labels), -chances.log())


def test_an_active_server_raises_the_candidates_loss_and_leaves_the_model_alone():
    candidates, model = records(10, 1), net()
    before = {name: p.clone() for name, p in model.named_parameters()}
    moved = PLAIN.manipulate(model, candidates, (), ())
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
    old, new = (
        losses(logits_of(m, candidates.inputs), candidates.labels).mean() for m in (model, moved.model)
    )
    assert new > old + 0.05


def test_images_are_normalised_by_channel():
    model = nn.Linear(1, 1)
    shown = model_inputs(torch.full((1, 3, 1, 1), 0.5), (0.5, 0.0, 0.25), (1.0, 0.5, 0.25), model)
    assert shown.flatten().tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize("bad", [{"candidates": 3}, {"shadows": 3}, {"ascent": 0.0}, {"gamma": 0.0}])
def test_settings_that_ask_nothing_are_refused(bad):
    with pytest.raises(ValueError, match="membership"):
        replace(PLAIN, **bad)
