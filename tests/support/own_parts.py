"""A model, a data set, a defense, an attack and a strategy as a user would bring them."""

from __future__ import annotations

import torch
from torch import nn

from attacks.base import Attack, LabelSet
from fl_app.data import Dataset, Samples
from fl_app.strategies import FedSGD
from fl_app.transforms import Transform, stateless
from fl_app.types import Observation, Update


def tiny_model(num_classes: int, in_shape: tuple[int, int, int], width: int) -> nn.Module:
    channels, height, widthwise = in_shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * height * widthwise, width),
        nn.ReLU(),
        nn.Linear(width, num_classes),
    )


def tiny_data() -> Dataset:
    generator = torch.Generator().manual_seed(0)

    def samples(count: int) -> Samples:
        images = torch.randint(0, 256, (count, 1, 8, 8), generator=generator, dtype=torch.uint8)
        return Samples(images, torch.arange(count) % 3)

    return Dataset.of("tiny", train=samples(60), test=samples(12), class_names=("a", "b", "c"))


def halve() -> Transform:
    return stateless(lambda update, ctx: {name: tensor / 2 for name, tensor in update.items()})


def guess_labels(label: int = 1) -> Attack:
    def attack(obs: Observation) -> LabelSet:
        return LabelSet(labels=torch.tensor([label]))

    return attack


class HalfSteps(FedSGD):
    def step(self, mean: Update, server_round: int) -> Update:
        return super().step({name: tensor / 2 for name, tensor in mean.items()}, server_round)
