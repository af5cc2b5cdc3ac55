"""Settings that the papers' tables need, as overrides: each does in a run what the paper says."""

import logging

import pytest
import torch
from federations import SMALL

from fl_app.client_app import app
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.running.federation import watch
from fl_app.types import RoundContext

ENTRIES = 20_000


def rate(overrides, round):
    return server_parts(f"{SMALL} schedule=piecewise {overrides}", WHOLE).strategy.lr(round)


def sent(overrides):
    """Return what is left of a gradient of one tensor, and the gradient."""
    transform = client_parts(f"{SMALL} {overrides}", WHOLE).defense.transform
    update = {"w": torch.randn(ENTRIES, generator=torch.Generator().manual_seed(0))}
    context = RoundContext(1, 0, torch.Generator().manual_seed(1), weights=update)
    left, _ = transform.apply(update, transform.init(update), context)
    return left["w"], update["w"]


def seen(overrides):
    """Return what the server saw of the first round."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    text = f"{SMALL} attack=ig attack.clients=all {overrides}"
    parts = server_parts(text)
    auditor = watch(parts)
    grid = TappedGrid(InlineGrid(app, 5, run_config={"overrides": text}), auditor)
    parts.strategy.start(grid=grid, initial_arrays=hold(parts.model.state_dict()), num_rounds=1)
    return auditor.sightings


@pytest.mark.parametrize("rounds", [100, 200])
def test_the_rates_of_xue_et_al_by_shares_of_the_run(rounds):
    text = f"lr=0.1 rounds={rounds} 'schedule.of=${{rounds}}' 'schedule.changes={{0.5:0.01,0.7:0.05}}'"
    half, later = rounds // 2, rounds * 7 // 10
    at = {1: 0.1, half: 0.1, half + 1: 0.01, later: 0.01, later + 1: 0.05, rounds: 0.05}
    assert {round: rate(text, round) for round in at} == at


def test_rates_change_at_rounds_without_a_number_of_them():
    text = "lr=0.1 'schedule.changes={3:0.01}'"
    assert [rate(text, round) for round in (2, 3)] == [0.1, 0.01]
    with pytest.raises(ConfigError, match="changes are at rounds, 1 or more"):
        rate("'schedule.changes={0.5:0.01}'", 1)
    with pytest.raises(ConfigError, match="after shares in"):
        rate("schedule.of=10 'schedule.changes={3:0.01}'", 1)


@pytest.mark.parametrize(("k1", "k2"), [(0.03, 0.45), (0.05, 0.75), (0.06, 0.90), (0.10, 0.70), (0.20, 0.60)])
def test_dual_pruning_at_the_papers_ratios_drops_both_ends(k1, k2):
    left, whole = sent(f"defense=dgp defense.k1={k1} defense.k2={k2}")
    assert int((left == 0).sum()) == round(k1 * ENTRIES) + round(k2 * ENTRIES)
    dropped = whole[left == 0].abs().sort().values
    smallest, largest = dropped[: round(k2 * ENTRIES)], dropped[round(k2 * ENTRIES) :]
    kept = left[left != 0].abs()
    assert smallest.max() <= kept.min() <= kept.max() <= largest.min()


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("variance", [1e-4, 1e-3, 1e-2, 1e-1])
def test_noise_at_the_variances_of_zhu_et_al(kind, variance):
    left, whole = sent(f"defense={kind} defense.std={variance**0.5}")
    # the variance of a sample variance: 2 / n of its square for normal noise, 5 / n for Laplace's
    assert (left - whole).var().item() == pytest.approx(variance, rel=4 * (5 / ENTRIES) ** 0.5)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.2, 0.3, 0.5, 0.7])
def test_pruning_of_a_single_gradient_at_the_ratios_of_zhu_et_al(ratio):
    left, _ = sent(f"defense=prune defense.rate={ratio} defense.error_feedback=false")
    assert int((left == 0).sum()) == round(ratio * ENTRIES)


@pytest.mark.parametrize("kind", ["fp16", "bf16", "int8"])
def test_numbers_of_few_bits_are_near_the_gradient(kind):
    left, whole = sent(f"defense={kind}")
    assert 0 < (left - whole).norm() / whole.norm() < 0.02


@pytest.mark.parametrize("batch", [1, 2, 4, 8])
def test_all_clients_are_attacked_with_the_batch_that_is_asked_for(batch):
    sightings = seen(f"defense=none data.train_per_class=10 audit.batch_size={batch}")
    assert [sighting.order.client for sighting in sightings] == [0, 1, 2, 3, 4]
    assert [len(sighting.truth.labels) for sighting in sightings] == [batch] * 5


@pytest.mark.parametrize(("steps", "batch"), [(1, 4), (3, 4), (5, 2)])
def test_local_steps_are_as_many_as_asked_for_each_on_samples_of_its_own(steps, batch):
    text = f"defense=none strategy=fed_avg training.steps={steps} batch_size={batch}"
    sightings = seen(f"{text} data.train_per_class=10 audit.batch_size={steps * batch}")
    for sighting in sightings:
        assert sighting.answer.steps == steps
        images = sighting.truth.inputs.flatten(1)
        assert len(images) == len(images.unique(dim=0)) == steps * batch


def test_pictures_may_have_64_pixels():
    sightings = seen("data.size=64 defense=none model=lenet_sigmoid")
    assert {tuple(sighting.truth.inputs.shape) for sighting in sightings} == {(1, 3, 64, 64)}
