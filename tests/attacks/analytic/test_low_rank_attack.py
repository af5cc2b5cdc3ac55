import dataclasses

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from attacks.analytic import complete_low_rank, complete_update, first_linear
from attacks.metrics import match, psnr
from fl_app.transforms import keep_topk, prune_dual
from fl_app.types import Observation

MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
DGP, TOPK = prune_dual(0.05, 0.75), keep_topk(0.2)


@pytest.fixture
def photos(shared_data) -> torch.Tensor:
    folders = sorted((shared_data / "cifar10" / "test").iterdir())[:8]
    pictures = [np.asarray(Image.open(folder / "0000.jpg").convert("RGB")) for folder in folders]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def mlp(**settings) -> nn.Module:
    hidden = nn.Linear(3072, 256, **settings)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(256, 10))


def pruned(obs: Observation, transform, ctx, *, masks: bool = True) -> Observation:
    update, _ = transform.apply(obs.update, transform.init(obs.update), ctx)
    sent = {name: tensor != 0 for name, tensor in update.items()} if masks else None
    return dataclasses.replace(obs, update=update, sent=sent)


@pytest.fixture
def seen(observe, photos):
    """What the server sees of photographs, normalised or as they are."""

    def make(which, *, normalised=True, model=None, **more):
        mean, std = (MEAN, STD) if normalised else ([0.0] * 3, [1.0] * 3)
        inputs = (photos[which] - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
        labels = torch.tensor(which)
        return observe(model or mlp(), inputs, labels, mean=mean, std=std, **more)

    return make


def matched_psnr(images, truth) -> torch.Tensor:
    pairs = match(images, truth)
    assert None not in pairs
    return psnr(images[pairs], truth)


@pytest.mark.parametrize(
    ("transform", "normalised", "least", "gain"),
    # measured means of the eight: DGP 39.3 dB normalised and 43.6 dB not, top-k 35.3 and 38.0;
    # the plain attack 17.9 and 12.3, 31.2 and 24.8
    [(DGP, True, 36, 15), (DGP, False, 40, 25), (TOPK, True, 32, 2), (TOPK, False, 35, 8)],
)
def test_completion_undoes_pruning_on_photographs(seen, photos, ctx, transform, normalised, least, gain):
    plain, completed = [], []
    for i in range(len(photos)):
        obs = pruned(seen([i], normalised=normalised), transform, ctx)
        for results, attack in ((plain, first_linear()), (completed, complete_low_rank())):
            results.append(psnr(attack(obs).images, photos[[i]]).item())
    assert np.mean(completed) > least
    assert np.mean(completed) > np.mean(plain) + gain
    # an attacker who knows more is never worse
    assert all(c > p for c, p in zip(completed, plain, strict=True))


def test_without_knowing_of_pruning_it_is_the_plain_attack(seen, ctx):
    obs = pruned(seen([4]), DGP, ctx)
    plain, unaware = first_linear()(obs), complete_low_rank(adaptive=False)(obs)
    assert torch.equal(plain.images, unaware.images)
    assert plain.notes == unaware.notes


def test_dual_pruning_protects_less_than_topk_of_the_same_size_once_completed(seen, photos, ctx):
    obs = seen([3])
    dgp, topk = (complete_low_rank()(pruned(obs, transform, ctx)).images for transform in (DGP, TOPK))
    assert psnr(dgp, photos[[3]]) > psnr(topk, photos[[3]])


def test_a_random_fifth_gives_the_photograph_exactly(seen, photos):
    obs = seen([2])
    generator = torch.Generator().manual_seed(0)
    sent = {name: torch.rand(g.shape, generator=generator) < 0.2 for name, g in obs.update.items()}
    kept = {name: g * sent[name] for name, g in obs.update.items()}
    result = complete_low_rank()(dataclasses.replace(obs, update=kept, sent=sent))
    assert psnr(result.images, photos[[2]]) > 80
    assert result.objective < 1e-6


def test_without_masks_what_is_not_zero_counts_as_sent(seen, ctx):
    obs = seen([1])
    with_masks, without = (
        complete_low_rank()(pruned(obs, DGP, ctx, masks=masks)).images for masks in (True, False)
    )
    assert torch.equal(with_masks, without)


def test_an_update_that_was_not_pruned_loses_nothing(seen, photos):
    assert psnr(complete_low_rank()(seen([0])).images, photos[[0]]) > 80


def test_a_pruned_batch_is_completed_and_told_apart(seen, photos, ctx):
    result = complete_low_rank()(pruned(seen([0, 1, 2, 3]), DGP, ctx))
    # measured: 36.8, 40.4, 42.0 and 37.6 dB
    assert matched_psnr(result.images, photos[:4]).min() > 30
    assert any("4 samples told apart" in note for note in result.notes)


def test_the_label_is_read_off_the_completed_output_layer(seen, ctx):
    for i in range(4):
        obs = pruned(seen([i], granted=False), DGP, ctx)
        result = complete_low_rank()(obs)
        assert result.labels.tolist() == [i]


@pytest.mark.parametrize("bias", ["absent", "withheld"])
def test_without_a_bias_the_image_is_known_up_to_scale_and_sign(seen, photos, ctx, bias):
    obs = pruned(seen([1], model=mlp(bias=bias != "absent")), DGP, ctx)
    if bias == "withheld":
        nothing = torch.zeros(256)
        update, sent = obs.update | {"1.bias": nothing}, dict(obs.sent) | {"1.bias": nothing.bool()}
        obs = dataclasses.replace(obs, update=update, sent=sent)
    result = complete_low_rank()(obs)
    assert any("scale and sign" in note for note in result.notes)
    assert 0 <= result.images.min() < result.images.max() <= 1
    # what the model saw, apart from the scale
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    seen_inputs, true_inputs = (((x - mean) / std).flatten() for x in (result.images, photos[[1]]))
    assert F.cosine_similarity(seen_inputs, true_inputs, dim=0).abs() > 0.99


def test_too_few_survivors_are_refused_with_the_numbers(seen, ctx):
    result = complete_low_rank()(pruned(seen([0]), keep_topk(0.004), ctx))
    assert result.images.shape == (0, 3, 32, 32)
    # 3145 of the weight's and one of the bias' entries, against 256 + 3073 - 1
    assert any("refused" in note and "3146 known entries" in note and "3328" in note for note in result.notes)


def test_a_model_that_starts_with_a_convolution_is_refused(observe):
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(192, 10))
    result = complete_low_rank()(observe(model, torch.rand(1, 3, 8, 8), torch.tensor([0])))
    assert len(result.images) == 0
    assert any("refused" in note and "flattened input" in note for note in result.notes)


def test_complete_update_fills_what_the_survivors_determine(seen, ctx):
    obs = seen([5])
    kept = pruned(obs, DGP, ctx)
    found = complete_update(kept)
    assert set(found.update) == set(obs.update)
    for name, true in obs.update.items():
        known = found.sent[name]
        assert torch.equal(found.update[name][kept.sent[name]], true[kept.sent[name]])
        torch.testing.assert_close(found.update[name][known], true[known], rtol=1e-3, atol=1e-6)
        assert not found.update[name][~known].any()
    assert found.sent["1.weight"].sum() > 1.5 * kept.sent["1.weight"].sum()
    assert kept.update["1.weight"].count_nonzero() == kept.sent["1.weight"].sum()
    assert any("1.weight completed to rank 1" in note for note in found.notes)


def test_complete_update_leaves_other_layers_and_higher_ranks_alone(observe, ctx):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))
    obs = observe(model, torch.rand(6, 3, 8, 8), torch.arange(6) % 5)
    kept = pruned(obs, TOPK, ctx)
    found = complete_update(kept)
    torch.testing.assert_close(found.update, kept.update, rtol=0, atol=0)
    assert any("3.weight left as it is: rank 6 is no restriction" in note for note in found.notes)


def test_complete_update_leaves_a_layer_alone_that_is_not_of_the_rank(seen):
    obs = dataclasses.replace(seen([0]), batch_size=1)
    noise = torch.randn(256, 3072, generator=torch.Generator().manual_seed(0))
    noisy = dataclasses.replace(obs, update=obs.update | {"1.weight": noise * (noise > 1)})
    found = complete_update(noisy)
    assert torch.equal(found.update["1.weight"], noisy.update["1.weight"])
    assert any("1.weight left as it is: not of rank 1" in note for note in found.notes)


def test_several_local_steps_allow_a_rank_for_each(seen, ctx):
    obs = dataclasses.replace(pruned(seen([0]), DGP, ctx), local_steps=3)
    notes = complete_update(obs).notes
    assert any("to rank 3" in note or "rank 3 " in note for note in notes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "complete_low_rank: rank must be at least 1 or None, got 0"),
        ({"starts": 0}, "complete_low_rank: starts must be at least 1, got 0"),
        ({"iterations": -1}, "complete_low_rank: iterations must be at least 1, got -1"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        complete_low_rank(**settings)
