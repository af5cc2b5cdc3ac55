import dataclasses
import json

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from attacks.active import add_imprint, imprint
from attacks.active.bin_edges import quantile_edges
from attacks.metrics import match, psnr
from attacks.score import score
from fl_app.models import convnet, lenet_zhu, mlp
from fl_app.transforms import keep_topk, prune_dual
from fl_app.types import Trace, Truth

SHAPE = (3, 8, 8)


@pytest.fixture
def network() -> nn.Module:
    return lenet_zhu(10, SHAPE, activation="sigmoid").double()  # no ReLU: every sample has an error signal


def counts(planted, inputs) -> torch.Tensor:
    """Count the samples between the edges, from the functional's values alone."""
    edges = (-planted.imprint.rows.bias.detach()).tolist()
    values = (inputs.flatten(1) @ planted.imprint.rows.weight[0].detach().to(inputs)).tolist()
    ends = [*edges[1:], float("inf")]
    return torch.tensor([sum(low < v <= high for v in values) for low, high in zip(edges, ends, strict=True)])


def as_seen(pixels, settings):
    mean, std = (torch.tensor(settings[key], dtype=pixels.dtype).view(3, 1, 1) for key in ("mean", "std"))
    return (pixels - mean) / std


@pytest.mark.parametrize("functional", ["mean", "mode32", "random"])
@pytest.mark.parametrize("edges", ["quantiles", "normal", "laplace"])
def test_every_bin_with_one_sample_is_read_and_no_other(network, victims, train, settings, functional, edges):
    attack = imprint(bins=24, functional=functional, edges=edges)
    planted = attack.plant(network, public=victims(2000, 1), **settings)
    pixels, labels = victims(16, 2), torch.arange(16) % 10
    bins = attack.read(train(planted, pixels, labels))
    expected = counts(planted, as_seen(pixels, settings))
    assert expected.sum() == 16
    assert 3 < (expected == 1).sum() < 16
    torch.testing.assert_close(bins.single, expected == 1)
    torch.testing.assert_close(bins.occupied, expected > 0)


@given(seed=st.integers(0, 10_000), batch=st.integers(1, 24), count=st.integers(2, 40))
@examples(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_of_any_batch_exactly_the_lone_samples_are_recovered(
    network, victims, train, settings, seed, batch, count
):
    attack = imprint(bins=count, functional="random", seed=seed)
    planted = attack.plant(network, public=victims(400, seed + 1), **settings)
    pixels, labels = victims(batch, seed), torch.arange(batch) % 10
    result = attack(train(planted, pixels, labels))
    expected = counts(planted, as_seen(pixels, settings))
    if (expected == 1).any():
        assert len(result.images) == int((expected == 1).sum())
        apart = torch.cdist(result.images.flatten(1), pixels.flatten(1))
        assert apart.min(dim=1).values.max() < 1e-6
        torch.testing.assert_close(result.labels, labels[apart.argmin(dim=1)])


@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 100), (torch.float32, 70)])
@pytest.mark.parametrize("levels", [False, True])
def test_pixels_are_exact(network, victims, train, settings, dtype, least, levels):
    attack = imprint(bins=200, functional="random")
    planted = attack.plant(network.to(dtype), public=victims(2000, 1), **settings)
    pixels, labels = victims(12, 3, levels), torch.arange(12) % 10
    result = attack(train(planted, pixels, labels))
    assert len(result.images) >= 8
    truth = Truth(pixels, labels)
    found = [value for value in score(result, truth)["psnr"] if value is not None]
    assert len(found) == len(result.images)
    assert min(found) > least
    assert result.images.dtype == dtype


def test_the_lowest_and_the_topmost_samples_are_not_lost(network, victims, train, settings):
    attack = imprint(bins=8, functional="mean", edges="quantiles")
    planted = attack.plant(network, public=victims(2000, 1), **settings)
    black, white = torch.zeros(1, *SHAPE), torch.ones(1, *SHAPE)  # outside of everything that was measured
    pixels = torch.cat([black, white]).double()
    result = attack(train(planted, pixels, torch.tensor([1, 2])))
    assert len(result.images) == 2
    assert psnr(result.images[match(result.images, pixels)], pixels).min() > 100
    assert not any(0.01 < float(image.mean()) < 0.99 for image in result.images)  # no mixture of both


def test_the_share_of_lone_samples_is_that_of_equally_likely_bins(network, victims, settings):
    count, batch = 20, 12
    planted = imprint(bins=count, functional="random").plant(network, public=victims(8000, 1), **settings)
    alone = [
        int((counts(planted, as_seen(victims(batch, seed), settings)) == 1).sum()) / batch
        for seed in range(100, 160)
    ]
    expected = (1 - 1 / count) ** (batch - 1)
    # the deviation of one batch's share is about 0.16
    assert sum(alone) / len(alone) == pytest.approx(expected, abs=4 * 0.16 / len(alone) ** 0.5)


def test_smoothed_edges_share_out_others_more_evenly_than_the_values_own_quantiles():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2000, generator=generator, dtype=torch.float64)
    normal = torch.distributions.Normal(0.0, 1.0)

    def unevenness(edges: torch.Tensor) -> float:
        return float(normal.cdf(edges).diff().std() * 250)

    plain = torch.quantile(values, torch.arange(1, 250).double() / 250)
    smooth = torch.tensor(quantile_edges(values, 250)).double()
    assert unevenness(smooth) < 0.6 * unevenness(plain)
    torch.testing.assert_close(normal.cdf(smooth), torch.arange(1, 250).double() / 250, atol=0.04, rtol=0)


def test_a_hand_worked_update_is_read_by_differences(network, train, victims):
    block = {"functional": "mean", "edges": [1.0, 1.2], "floor": -1.0}
    planted = add_imprint(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), in_shape=(1, 2, 2), **block)
    dim, bright = torch.tensor([0.25, 0.5, 0.0, 1.0]), torch.tensor([0.5, 0.75, 1.0, 1.0])
    update = {name: torch.zeros_like(p) for name, p in planted.named_parameters()}
    # the dim one measures 0.875 and is in the first bin alone, the bright one 1.625: in all three
    update["imprint.rows.weight"] = torch.stack([2 * dim - 3 * bright, -3 * bright, -3 * bright])
    update["imprint.rows.bias"] = torch.tensor([-1.0, -3.0, -3.0])
    obs = dataclasses.replace(
        train(planted_like(), victims(1, 0), torch.tensor([0])),
        model=planted,
        update=update,
        input_shape=(1, 2, 2),
        mean=[0.0],
        std=[1.0],
        batch_size=None,
    )
    bins = imprint(bins=3).read(obs)
    assert bins.occupied.tolist() == [True, False, True]
    torch.testing.assert_close(bins.inputs[[0, 2]], torch.stack([dim, bright]).double())
    assert any("batch size is not granted" in note for note in bins.notes)


def planted_like() -> nn.Module:
    return mlp(10, SHAPE)


def test_settings_are_plain_data_that_build_the_same_model(network, victims, settings):
    attack = imprint(bins=12)
    spec = attack.settings(public=victims(500, 1), **settings)
    again = json.loads(json.dumps(spec))
    images = as_seen(victims(3, 5), settings)
    planted = attack.plant(network, public=victims(500, 1), **settings)
    torch.testing.assert_close(add_imprint(network, **again)(images), planted(images), rtol=0, atol=0)


def test_planting_leaves_the_model_and_the_random_numbers_alone(network, victims, settings):
    before = {name: p.clone() for name, p in network.state_dict().items()}
    state = torch.get_rng_state()
    planted = imprint(bins=12).plant(network, public=victims(500, 1), **settings)
    torch.testing.assert_close(torch.get_rng_state(), state)
    torch.testing.assert_close(dict(network.state_dict()), before)
    torch.testing.assert_close(dict(planted.model.state_dict()), before)


@pytest.mark.parametrize("build", [lenet_zhu, mlp])
def test_a_planted_model_is_finite_and_learns(build, victims, settings):
    planted = imprint(bins=30, functional="mean").plant(build(2, SHAPE), public=victims(900, 1), **settings)
    pixels = victims(64, 6)
    inputs, labels = as_seen(pixels, settings).float(), (pixels.flatten(1).mean(dim=1) > 0.3).long()
    optimiser = torch.optim.SGD(planted.model.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = F.cross_entropy(planted(inputs), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert all(torch.isfinite(torch.tensor(losses)))
    assert losses[-1] < 0.8 * losses[0]


def test_a_delta_of_one_step_is_as_good_as_a_gradient(network, victims, train, settings):
    attack = imprint(bins=40, functional="random")
    planted = attack.plant(network, public=victims(900, 1), **settings)
    pixels, labels = victims(10, 7), torch.arange(10)
    one, gradient = (attack(train(planted, pixels, labels, steps=steps)) for steps in (1, None))
    assert len(one.images) == len(gradient.images) > 3
    torch.testing.assert_close(one.images, gradient.images, atol=1e-5, rtol=0)
    torch.testing.assert_close(one.labels, gradient.labels)


def test_several_steps_smear_the_bins_and_the_result_says_so(network, victims, train, settings):
    attack = imprint(bins=40, functional="random")
    planted = attack.plant(network, public=victims(900, 1), **settings)
    pixels, labels = victims(10, 7, levels=True), torch.arange(10)
    obs = train(planted, pixels, labels, steps=3, lr=1e-4)
    bins, result = attack.read(obs), attack(obs)
    assert any("moved the edges by" in note for note in bins.notes)
    assert any("not replayed: 3 local steps" in note for note in bins.notes)
    alone = int((counts(planted, as_seen(pixels, settings)) == 1).sum())
    assert bins.decided
    # edges that move may also part two samples that were in one bin
    assert alone - 1 <= len(result.images) <= alone + 2
    assert psnr(*paired(result.images, pixels)).min() > 50


def noisy(std: float) -> tuple[Trace, ...]:
    return Trace(withheld="small"), Trace(noise=std)


@pytest.mark.parametrize(
    ("options", "deltas", "defense", "gain"),
    [
        ({}, False, None, 2.0**20),
        ({}, False, noisy(1e-9), 2.0**20),
        ({}, False, noisy(0.25), 2.0**35),
        ({"adaptive": False}, False, noisy(0.25), 2.0**20),
        ({"gain": 3.0}, False, noisy(0.25), 3.0),
        ({}, True, noisy(0.25), 16.0),
    ],
)
def test_an_adaptive_server_is_louder_than_the_noise_that_it_knows_of(
    victims, settings, options, deltas, defense, gain
):
    made = imprint(bins=40, **options).settings(
        public=victims(500, 1), deltas=deltas, defense=defense, **settings
    )
    assert made["gain"] == gain


def test_noise_hides_images_from_a_plain_server_and_none_from_an_adaptive_one(victims, train, settings):
    pixels, labels, public = victims(12, 3, levels=True), torch.arange(12) % 10, victims(500, 1)
    shared = {key: settings[key] for key in ("in_shape", "mean", "std")}
    found = {}
    for adaptive in (False, True):
        attack = imprint(bins=40, adaptive=adaptive)
        model = lenet_zhu(10, SHAPE)
        planted = attack.manipulate(model, public=public, deltas=False, defense=noisy(0.01), **shared).model
        obs = train(planted, pixels, labels)
        generator = torch.Generator().manual_seed(0)
        noise = {k: g + 0.01 * torch.randn(g.shape, generator=generator) for k, g in obs.update.items()}
        single = attack.read(dataclasses.replace(obs, update=noise)).single
        found[adaptive] = int((single & (counts(planted, as_seen(pixels, settings)) == 1)).sum())
        alone = int((counts(planted, as_seen(pixels, settings)) == 1).sum())
    assert found[True] == alone > found[False]


@pytest.mark.parametrize("gain", [1 / 8, 1.0, 256.0])
def test_a_gradient_is_the_same_with_any_gain_but_for_its_scale(victims, train, settings, gain):
    pixels, labels, public = victims(12, 3), torch.arange(12) % 10, victims(500, 1)
    model = lenet_zhu(10, SHAPE)
    found, updates = [], []
    for chosen in (gain, 16.0):
        attack = imprint(bins=40, gain=chosen)
        obs = train(attack.plant(model, public=public, **settings), pixels, labels)
        found.append(attack.read(obs))
        updates.append(obs.update)
    ratio = 16.0 / gain  # a power of two: not a digit is lost
    torch.testing.assert_close(
        ratio * updates[0]["imprint.rows.weight"], updates[1]["imprint.rows.weight"], rtol=0, atol=0
    )
    torch.testing.assert_close(updates[0]["model.conv1.weight"], updates[1]["model.conv1.weight"])
    torch.testing.assert_close(found[0].inputs, found[1].inputs, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found[0].single, found[1].single)


@pytest.mark.parametrize("lr", [0.01, 0.1])
def test_deltas_in_float32_are_read_by_their_levels(victims, train, settings, lr):
    attack = imprint(bins=60, functional="random")
    planted = attack.plant(lenet_zhu(10, SHAPE, activation="sigmoid"), public=victims(900, 1), **settings)
    pixels, labels = victims(10, 7, levels=True), torch.arange(10)
    expected = counts(planted, as_seen(pixels, settings))
    obs = train(planted, pixels, labels, steps=1, lr=lr)
    bins, result = attack.read(obs), attack(obs)
    torch.testing.assert_close(bins.single, expected == 1)
    assert len(result.images) == int((expected == 1).sum()) > 5
    assert psnr(*paired(result.images.double(), pixels)).min() > 100


def test_a_batch_of_256_is_sorted_as_any_other(network, victims, train, settings):
    attack = imprint(bins=300, functional="random")
    planted = attack.plant(network, public=victims(2000, 1), **settings)
    pixels = victims(256, 2)
    bins = attack.read(train(planted, pixels, torch.arange(256) % 10))
    expected = counts(planted, as_seen(pixels, settings))
    assert expected.max() > 2
    torch.testing.assert_close(bins.single, expected == 1)
    torch.testing.assert_close(bins.occupied, expected > 0)


def paired(images, truth):
    pairs = [(i, row) for row, i in enumerate(match(images, truth)) if i is not None]
    found, rows = zip(*pairs, strict=True)
    return images[list(found)], truth[list(rows)]


def test_batch_norm_in_train_mode_is_read_by_levels(victims, train, settings):
    settings = {**settings, "in_shape": (3, 9, 9)}
    crop = torch.rand(900, 3, 9, 9, dtype=torch.float64)
    attack = imprint(bins=60, functional="random")
    planted = attack.plant(convnet(10, (3, 9, 9), width=4).double(), public=crop, **settings)
    pixels = (255 * torch.rand(10, 3, 9, 9, dtype=torch.float64)).round() / 255
    result = attack(train(planted, pixels, torch.arange(10)))
    expected = int((counts(planted, as_seen(pixels, settings)) == 1).sum())
    assert any("in train mode" in note for note in result.notes)
    assert len(result.images) == expected > 3
    assert result.labels is None
    assert psnr(*paired(result.images, pixels)).min() > 80


def test_without_levels_and_replay_no_bin_is_called_single(network, victims, train, settings):
    attack = imprint(bins=40, functional="random")
    planted = attack.plant(network, public=victims(900, 1), **settings)
    obs = dataclasses.replace(train(planted, victims(10, 7), torch.arange(10)), batch_size=None)
    bins, result = attack.read(obs), attack(obs)
    assert not bins.decided
    assert not bins.single.any()
    assert len(result.images) == int(bins.occupied.sum())
    assert any("whether one is a mixture is not known" in note for note in result.notes)


@pytest.mark.parametrize("prune", [keep_topk(0.6), prune_dual(0.05, 0.4)])
def test_pruned_rows_are_read_where_both_survive(network, victims, train, settings, ctx, prune):
    attack = imprint(bins=40, functional="random")
    planted = attack.plant(network, public=victims(900, 1), **settings)
    pixels = victims(6, 11, levels=True)
    obs = train(planted, pixels, torch.arange(6))
    update, _ = prune.apply(obs.update, prune.init(obs.update), ctx)
    pruned = dataclasses.replace(obs, update=update)
    result = attack(pruned)
    assert any("adaptive" in note for note in result.notes)
    assert len(result.images) >= 2
    for image in result.images.double():
        # most pixels that two rows have are exact; the others are only guessed
        exact = ((pixels - image).abs() < 1e-3).flatten(1).double().mean(dim=1)
        assert exact.max() > 0.15
        assert exact.sort().values[-2] < 0.1
    assert not any("adaptive" in note for note in imprint(adaptive=False)(pruned).notes)


def test_photographs_are_recovered_exactly(photos, train):
    where = {"in_shape": (3, 32, 32), "mean": [0.5, 0.45, 0.4], "std": [0.25, 0.2, 0.3]}
    attack = imprint(bins=100, functional="random", edges="laplace")
    # eight photographs stand for the public ones: a law needs no more than their moments
    planted = attack.plant(lenet_zhu(10, (3, 32, 32)), public=photos, **where)
    result = attack(train(planted, photos.double(), torch.arange(8)))
    expected = counts(planted, as_seen(photos.double(), where))
    assert len(result.images) == int((expected == 1).sum()) >= 4
    assert psnr(*paired(result.images.double(), photos.double())).min() > 70


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 1}, "bins must be at least 2, got 1"),
        ({"gain": 0.0}, "gain must be above 0, got 0.0"),
        ({"functional": "median"}, "functional must be one of mean, mode32, random; got 'median'"),
        (
            {"edges": "uniform"},
            "edges must be one of quantiles, normal, laplace, or 99 numbers; got 'uniform'",
        ),
        ({"bins": 3, "edges": [1.0]}, "3 bins have 2 inner edges, got 1"),
    ],
)
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        imprint(**options)


def test_planting_refuses_what_it_cannot_place_edges_with(network, victims, settings):
    with pytest.raises(ValueError, match="quantiles need public images, got none"):
        imprint().plant(network, **settings)
    with pytest.raises(ValueError, match="need at least as many images, got 50"):
        imprint().plant(network, public=victims(50, 0), **settings)
    with pytest.raises(ValueError, match="public images or moments"):
        imprint(edges="normal").plant(network, **settings)
    with pytest.raises(ValueError, match="deviation above 0"):
        imprint(edges="normal").plant(network, moments=(0.0, 0.0), **settings)
    with pytest.raises(ValueError, match="too many agree"):
        imprint(bins=4).plant(network, public=torch.zeros(9, *SHAPE), **settings)
    with pytest.raises(ValueError, match="must ascend"):
        imprint(bins=3, edges=[1.0, 0.5]).plant(network, **settings)


def test_a_law_needs_no_images(network, settings):
    planted = imprint(bins=4, edges="normal").plant(network, moments=(2.0, 3.0), **settings)
    rows = planted.imprint.rows
    edges = -rows.bias.detach() / rows.weight[0].detach().norm()  # the functional has length 1
    normal = torch.distributions.Normal(2.0, 3.0)
    torch.testing.assert_close(normal.cdf(edges[1:]), torch.tensor([0.25, 0.5, 0.75]).double())


def test_a_model_without_the_block_is_refused(network, victims, train):
    with pytest.raises(ValueError, match="must have an imprint block"):
        imprint()(train(network, victims(1, 0), torch.tensor([0])))


def test_an_update_without_a_signal_gives_no_image(network, victims, train, settings):
    attack = imprint(bins=5)
    planted = attack.plant(network, public=victims(50, 0), **settings)
    obs = train(planted, victims(1, 0), torch.tensor([0]))
    silent = {name: torch.zeros_like(entries) for name, entries in obs.update.items()}
    result = attack(dataclasses.replace(obs, update=silent))
    assert len(result.images) == 0
    assert any("refused" in note for note in result.notes)
