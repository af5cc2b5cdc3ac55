import dataclasses

import pytest
import torch
from torch import nn

from attacks.active import trap_weights
from attacks.active.trap_weights import trap_rows
from attacks.metrics import match, psnr
from fl_app.models import convnet, lenet_zhu, mlp
from fl_app.transforms import drop_smallest, keep_topk, prune_dual

SHAPE = (3, 8, 8)


def behind_convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 4, 5, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 8 * 8, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


@pytest.mark.parametrize("build", [lambda: mlp(10, SHAPE, hidden=(128,)), behind_convolutions])
@pytest.mark.parametrize(("dtype", "least"), [(torch.float64, 100), (torch.float32, 70)])
def test_rows_that_one_sample_activates_are_found_and_read(victims, train, settings, build, dtype, least):
    attack = trap_weights(scale=0.85)
    planted = attack.plant(build().to(dtype), **settings)
    pixels, labels = victims(10, 2), torch.arange(10)
    # brute force: a row is active for a sample if the traps' sum over its pixels is above zero
    active = pixels.flatten(1) @ trap_rows(128, 192, 0.85, 0).t() > 0
    lone = active.sum(dim=0) == 1
    obs = train(planted, pixels, labels)
    rows, result = attack.read(obs), attack(obs)
    assert lone.sum() > 5
    torch.testing.assert_close(rows.single, lone)
    torch.testing.assert_close(rows.active, active.any(dim=0))
    owners = active.double().argmax(dim=0)[lone].unique()
    assert len(result.images) == len(owners)
    pairs = match(result.images, pixels)
    assert [i for i in range(10) if pairs[i] is not None] == owners.tolist()
    assert psnr(result.images[[pairs[i] for i in owners]].double(), pixels[owners]).min() > least
    torch.testing.assert_close(result.labels[[pairs[i] for i in owners]], labels[owners])


@pytest.mark.parametrize("build", [lambda: mlp(10, SHAPE, hidden=(128,)), behind_convolutions])
@pytest.mark.parametrize(
    ("prune", "gain"), [(keep_topk(0.05), 0), (prune_dual(0.02, 0.92), 10), (drop_smallest(0.93), 0)]
)
def test_pruned_rows_of_one_sample_are_merged(victims, train, settings, ctx, build, prune, gain):
    pixels, labels = victims(4, 2, levels=True), torch.arange(4)
    planted = trap_weights(scale=0.85).plant(build(), **settings)
    obs = train(planted, pixels, labels)
    weight = "hidden1.weight" if "hidden1.weight" in obs.update else "5.weight"
    update, _ = prune.apply(obs.update, prune.init(obs.update), ctx)
    # brute force: which samples are alone in which rows, and how much the best of these shows
    active = pixels.flatten(1) @ trap_rows(128, 192, 0.85, 0).t() > 0
    owner = torch.where(active.sum(dim=0) == 1, active.double().argmax(dim=0), -1)
    survivors = (update[weight][:, :192] != 0).sum(dim=1)
    pruned = dataclasses.replace(obs, update=update)
    result, plain = (trap_weights(scale=0.85, adaptive=way)(pruned) for way in (True, False))
    assert any("adaptive" in note for note in result.notes)
    assert not any("adaptive" in note for note in plain.notes)
    assert len(result.images) >= 2
    gained = []
    for image in result.images.double().flatten(1):
        exact = ((pixels.flatten(1) - image).abs() < 1e-4).sum(dim=1)
        nearest = int(exact.argmax())
        assert exact[nearest] >= 24
        assert exact.sort().values[-2] < 10  # nothing of another sample
        gained.append(int(exact[nearest] - survivors[owner == nearest].max()))
    # of the largest alone top-k keeps most in the largest row; dual pruning, more in others
    assert max(gained) >= gain


def test_biases_that_were_withheld_are_voted_on(victims, train, settings, ctx):
    attack = trap_weights(scale=0.85)
    pixels = victims(4, 2, levels=True)
    obs = train(attack.plant(mlp(10, SHAPE, hidden=(128,)), **settings), pixels, torch.arange(4))
    prune = drop_smallest(0.9)
    update, _ = prune.apply(obs.update, prune.init(obs.update), ctx)
    update["hidden1.bias"] = torch.zeros_like(update["hidden1.bias"])
    rows = attack.read(dataclasses.replace(obs, update=update))
    assert len(rows.pixels) >= 3
    assert any(note.startswith(f"{len(rows.pixels)} error signals were not sent") for note in rows.notes)
    for image in rows.pixels:
        assert ((pixels.flatten(1) - image).abs() < 1e-4).double().mean(dim=1).max() > 0.5


def test_black_pixels_are_not_taken_for_withheld_ones(victims, train, settings):
    attack = trap_weights(scale=0.85)
    planted = attack.plant(behind_convolutions(), **settings)
    pixels = victims(10, 2)
    pixels[:, :, :3] = 0
    obs = train(planted, pixels, torch.arange(10))
    lone = (pixels.flatten(1) @ trap_rows(128, 192, 0.85, 0).t() > 0).sum(dim=0) == 1
    torch.testing.assert_close(attack.read(obs).single, lone)


def test_half_of_each_row_is_negative_and_the_rest_is_smaller():
    rows = trap_rows(5, 64, 0.9, 3)
    assert (rows < 0).sum(dim=1).tolist() == [32] * 5
    torch.testing.assert_close(rows.clamp_min(0).sum(dim=1), -0.9 * rows.clamp_max(0).sum(dim=1))


def test_a_smaller_scale_lets_fewer_samples_through(victims):
    pixels = victims(200, 4).flatten(1)
    shares = [
        float((pixels @ trap_rows(100, 192, scale, 0).t() > 0).double().mean()) for scale in (1, 0.9, 0.7)
    ]
    assert shares[0] == pytest.approx(0.5, abs=0.05)
    assert shares[0] > 2 * shares[1] > 4 * shares[2] > 0


def test_planting_leaves_the_model_alone_and_the_copy_trainable(victims, train, settings):
    model = mlp(10, SHAPE)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    planted = trap_weights().plant(model, **settings)
    torch.testing.assert_close(dict(model.state_dict()), before)
    obs = train(planted, victims(20, 1), torch.arange(20) % 10)
    assert all(entries.isfinite().all() for entries in obs.update.values())
    assert obs.update["hidden1.bias"].any()
    torch.testing.assert_close(planted.hidden1.weight.std(), before["hidden1.weight"].std(), rtol=0.5, atol=0)


def test_mixtures_are_not_called_samples_when_no_test_applies(victims, train, settings):
    attack = trap_weights(scale=0.85)
    planted = attack.plant(mlp(10, SHAPE), **settings)
    obs = dataclasses.replace(train(planted, victims(10, 2), torch.arange(10)), batch_size=None)
    rows = attack.read(obs)
    assert not rows.decided
    assert not rows.single.any()
    assert any("not known" in note for note in rows.notes)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lenet_zhu(10, SHAPE), "conv1 must have stride 1"),
        (convnet(10, (3, 9, 9), norm="none"), r"got MaxPool2d \(pool6\)"),
        (
            nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(128, 10)),
            "0 must have 3 channels",
        ),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 10, bias=False)), "1 must have a bias"),
        (nn.Conv2d(3, 3, 3), "must have a linear layer"),
    ],
)
def test_models_that_hide_the_image_from_the_layer_are_refused(settings, model, message):
    shape = (3, 9, 9) if "pool6" in dict(model.named_modules()) else SHAPE
    with pytest.raises(ValueError, match=message):
        trap_weights().plant(model, **{**settings, "in_shape": shape})


def test_reading_refuses_a_model_that_was_not_planted(victims, train):
    with pytest.raises(ValueError, match="first linear layer must see the image itself"):
        trap_weights()(train(lenet_zhu(10, SHAPE), victims(1, 0), torch.tensor([0])))


@pytest.mark.parametrize("scale", [0, 1.5])
def test_wrong_scales_are_refused(scale):
    with pytest.raises(ValueError, match=rf"scale must be in \(0, 1\], got {scale}"):
        trap_weights(scale=scale)
