"""Outpost: what is pruned, where the noise goes, how loud it is, and how it fades."""

import math

import pytest
import torch

from fl_app.transforms import add_gaussian, drop_smallest, perturb_outpost


def shuffled(n: int, dtype=torch.float64) -> torch.Tensor:
    """Distinct magnitudes 1 … n with random signs."""
    return (torch.randperm(n) + 1).to(dtype) * (torch.randint(0, 2, (n,)) * 2 - 1)


def weights_with(variances: dict[str, float]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([-1.0, 1.0]) * math.sqrt(variance) for name, variance in variances.items()}


def apply(transform, update, ctx):
    sent, _ = transform.apply(update, {}, ctx)
    return sent


def test_it_prunes_the_smallest_of_each_layer_whatever_the_others_hold(make_context):
    update = {"w": shuffled(1000).view(20, 50), "b": shuffled(100) * 1e-6}
    ctx = make_context(weights=weights_with({"w": 0.0, "b": 0.0}))
    sent = apply(perturb_outpost(), update, ctx)
    pruned = apply(drop_smallest(0.8), update, ctx)
    for name, tensor in update.items():
        assert int((sent[name] != 0).sum()) == tensor.numel() // 5
        assert torch.equal(sent[name], pruned[name])


def test_the_noise_goes_to_the_coordinates_of_largest_fisher_information_of_all_layers(make_context):
    update = {"w": shuffled(1000), "b": shuffled(500) * 1.5 + 0.25}
    ctx = make_context(weights=weights_with({"w": 1.0, "b": 1.0}))
    sent = apply(perturb_outpost(), update, ctx)
    pruned = apply(drop_smallest(0.8), update, ctx)
    fisher = [(float(g) ** 2, name, i) for name, t in update.items() for i, g in enumerate(t)]
    expected = {(name, i) for _, name, i in sorted(fisher, reverse=True)[:600]}
    changed = {
        (name, i) for name in update for i in (sent[name] != pruned[name]).nonzero().flatten().tolist()
    }
    assert changed == expected
    # pruning has already taken some of them, and the noise puts something there again
    assert any(pruned[name][i] == 0 and sent[name][i] != 0 for name, i in expected)


def test_ties_do_not_make_the_noise_spread_further(make_context):
    update = {"w": torch.ones(10), "b": torch.ones(5)}
    sent = apply(perturb_outpost(prune=0.0), update, make_context(weights=weights_with({"w": 1.0, "b": 1.0})))
    assert (sent["w"] != 1).tolist() == [True] * 6 + [False] * 4
    assert (sent["b"] == 1).all()


def test_the_noise_of_a_layer_is_as_loud_as_its_weights_spread_but_at_most_one(make_context):
    n = 100_000
    spread = {"narrow": 0.01, "wide": 0.5, "wider": 9.0, "constant": 0.0}
    update = {name: torch.ones(n) for name in spread}
    sent = apply(
        perturb_outpost(prune=0.0, noise=0.8, noisy=1.0), update, make_context(weights=weights_with(spread))
    )
    for name, risk in {"narrow": 0.01, "wide": 0.5, "wider": 1.0}.items():
        noise = (sent[name] - 1).double() / (risk * 0.8)
        assert abs(float(noise.mean())) < 5 / math.sqrt(n)
        assert abs(float(noise.square().mean()) - 1) < 5 * math.sqrt(2 / n)
    assert torch.equal(sent["constant"], update["constant"])


def test_a_layer_of_one_weight_has_no_spread_and_gets_no_noise(make_context):
    update = {"s": torch.tensor(2.0)}
    ctx = make_context(weights={"s": torch.tensor(5.0)})
    assert apply(perturb_outpost(noisy=1.0), update, ctx)["s"] == 2.0


@pytest.mark.parametrize("beta", [0.125, 1.0])
def test_the_chance_of_a_perturbation_fades_with_the_rounds(beta, make_context):
    update = {"w": torch.arange(1.0, 11.0)}
    weights = weights_with({"w": 1.0})
    transform, clients = perturb_outpost(beta=beta), 600
    statistic, rounds = 0.0, [2, 3, 5, 9, 17, 65]
    for round in rounds:
        chance = 1 / (1 + beta * (round - 1))
        count = sum(
            not torch.equal(
                apply(transform, update, make_context(round, client, weights=weights))["w"], update["w"]
            )
            for client in range(clients)
        )
        statistic += (count - clients * chance) ** 2 / (clients * chance * (1 - chance))
    assert statistic < 27.9  # chi-square with six degrees of freedom: one in ten thousand is larger


def test_a_step_is_perturbed_whole_or_not_at_all(make_context):
    update = {"w": torch.arange(1.0, 101.0), "b": torch.arange(1.0, 21.0)}
    weights = weights_with({"w": 1.0, "b": 1.0})
    seen = set()
    for client in range(60):
        sent = apply(perturb_outpost(), update, make_context(9, client, weights=weights))
        seen.add(tuple(torch.equal(sent[name], update[name]) for name in update))
    assert seen == {(True, True), (False, False)}


def test_the_first_round_is_always_perturbed_and_without_decay_every_round(make_context):
    update, weights = {"w": torch.arange(1.0, 11.0)}, weights_with({"w": 1.0})
    for client in range(50):
        first = apply(perturb_outpost(beta=100), update, make_context(1, client, weights=weights))
        late = apply(perturb_outpost(beta=0), update, make_context(10**6, client, weights=weights))
        assert not torch.equal(first["w"], update["w"])
        assert not torch.equal(late["w"], update["w"])


def test_without_pruning_and_noise_no_bit_changes(make_context):
    update = {"w": torch.tensor([0.0, -0.0, 1e-45, -3.5]), "s": torch.tensor(-0.0)}
    sent = apply(
        perturb_outpost(prune=0, noise=0), update, make_context(weights=weights_with({"w": 1.0, "s": 1.0}))
    )
    for name, tensor in update.items():
        assert sent[name].numpy().tobytes() == tensor.numpy().tobytes()


def test_without_pruning_and_with_the_whole_share_the_noise_has_normal_tails(make_context):
    n = 200_000
    ctx = make_context(weights=weights_with({"w": 1.0}))
    transform = perturb_outpost(prune=0, noisy=1)
    noise = apply(transform, {"w": torch.zeros(n)}, ctx)["w"].double()
    reference = apply(add_gaussian(0.8), {"w": torch.zeros(n)}, make_context(2))["w"].double()
    for power in (2, 4):
        assert float((noise**power).mean()) == pytest.approx(float((reference**power).mean()), rel=0.05)


def test_the_weights_are_needed(make_context):
    update = {"w": torch.ones(4), "b": torch.ones(4)}
    with pytest.raises(ValueError, match=r"perturb_outpost: ctx.weights must hold .* none for \['b', 'w'\]"):
        apply(perturb_outpost(), update, make_context())
    with pytest.raises(ValueError, match=r"none for \['b'\]"):
        apply(perturb_outpost(), update, make_context(weights={"w": torch.ones(4)}))
