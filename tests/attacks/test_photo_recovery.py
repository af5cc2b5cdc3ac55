"""The marks of the reference implementation on real photographs, beaten by the defaults."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from attacks.metrics import psnr, ssim
from attacks.optimisation import inverting_gradients
from fl_app.types import Observation

MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]


def lenet() -> nn.Module:
    def block(channels: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, 12, 5, stride=stride, padding=2), nn.ReLU()]

    return nn.Sequential(*block(3, 2), *block(12, 2), *block(12, 1), nn.Flatten(), nn.Linear(768, 10))


@pytest.fixture
def photos(shared_data) -> torch.Tensor:
    folders = sorted((shared_data / "cifar10" / "test").iterdir())[:8]
    pictures = [np.asarray(Image.open(folder / "0000.jpg").convert("RGB")) for folder in folders]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def observations(model: nn.Module, photos: torch.Tensor, keep) -> list[Observation]:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    seen = []
    for label, photo in enumerate(photos):
        target = torch.tensor([label])
        loss = F.cross_entropy(model(((photo - mean) / std)[None]), target)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        sent = {name: keep(g) for (name, _), g in zip(model.named_parameters(), gradients, strict=True)}
        seen.append(
            Observation(
                model,
                {name: g * sent[name] for name, g in zip(sent, gradients, strict=True)},
                sent=sent,
                batch_size=1,
                num_classes=10,
                input_shape=(3, 32, 32),
                mean=MEAN,
                std=STD,
                labels=target,
                training=True,
            )
        )
    return seen


def everything(gradient: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(gradient, dtype=torch.bool)


def neither_largest_nor_smallest(gradient: torch.Tensor) -> torch.Tensor:
    size = gradient.numel()
    rank = gradient.abs().flatten().argsort(descending=True).argsort().view_as(gradient)
    return (rank >= int(0.05 * size)) & (rank < size - int(0.75 * size))


@pytest.mark.slow
def test_the_defaults_beat_the_reference_on_lenet(photos):
    results = inverting_gradients().many(observations(lenet(), photos, everything))
    images = torch.cat([result.images for result in results])
    assert psnr(images, photos).mean() > 17.39
    assert ssim(images, photos).mean() > 0.567


@pytest.mark.slow
def test_knowing_of_dual_pruning_undoes_much_of_it(photos):
    seen = observations(lenet(), photos, neither_largest_nor_smallest)
    plain, adaptive = (
        torch.cat([result.images for result in inverting_gradients(adaptive=knows).many(seen)])
        for knows in (False, True)
    )
    assert psnr(adaptive, photos).mean() > max(14.2, psnr(plain, photos).mean().item() + 2)
    assert ssim(adaptive, photos).mean() > 0.37
