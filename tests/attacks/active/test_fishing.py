"""Fishing: below the output layer the update is that of the target's samples alone."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.active.fishing import fishing
from attacks.metrics import mse
from fl_app.types import Observation


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 5, stride=2, padding=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(96, 5)
    ).double()


def pictures(count: int) -> torch.Tensor:
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    return F.interpolate(coarse, size=8, mode="bilinear", align_corners=True)


def seen(planted: nn.Module, pixels: torch.Tensor, labels: torch.Tensor, **more) -> Observation:
    loss = F.cross_entropy(planted(pixels), labels)
    gradients = torch.autograd.grad(loss, list(planted.parameters()))
    update = dict(zip([n for n, _ in planted.named_parameters()], gradients, strict=True))
    facts = {"batch_size": len(labels), "num_classes": 5, "input_shape": (3, 8, 8), "training": False}
    return Observation(planted, update, mean=[0.0] * 3, std=[1.0] * 3, **facts | more)


LABELS = torch.tensor([1, 4, 0, 2, 0, 1, 4, 2, 3, 1])


def test_the_body_feels_the_targets_samples_alone():
    planted = fishing(target=3).plant(model())
    whole = seen(planted, pictures(10), LABELS)
    alone = seen(planted, pictures(10)[8:9], LABELS[8:9])
    for name in ("0.weight", "0.bias"):
        torch.testing.assert_close(10 * whole.update[name], alone.update[name], atol=1e-9, rtol=1e-6)


def test_one_sample_of_a_batch_comes_back_and_all_classes_are_counted():
    attack = fishing(target=3, steps=400, tv=0.001)
    obs = seen(attack.plant(model()), pictures(10), LABELS)
    result = attack(obs)
    assert result.images.shape == (1, 3, 8, 8)
    assert mse(result.images, pictures(10)[8:9]) < 0.005
    assert "2 of class 0, 3 of class 1, 2 of class 2, 1 of class 3, 2 of class 4" in result.notes[-1]
    stepped = replace(obs, update={n: -0.5 * g for n, g in obs.update.items()}, local_steps=1, lr=0.5)
    assert attack(stepped).labels.tolist() == [3]


def test_premises_are_checked():
    attack = fishing(target=3, steps=2)
    planted = attack.plant(model())
    none = seen(planted, pictures(3), torch.tensor([0, 1, 1]))
    assert "none of the target" in attack(none).notes[-1]
    honest = seen(model(), pictures(3), torch.tensor([0, 3, 1]))
    assert "no counts" in attack(honest).notes[-1]
    assert "4 local steps" in attack(replace(none, local_steps=4, lr=0.1)).notes[-1]
    with pytest.raises(ValueError, match="no class"):
        fishing(target=9).plant(model())
    with pytest.raises(ValueError, match="target"):
        fishing(target=-1)
