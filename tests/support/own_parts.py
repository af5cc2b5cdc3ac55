"""Models, data sets, public samples, a defense, an attack and a strategy as a user would bring them."""

from __future__ import annotations

from collections.abc import Callable

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


def give_up() -> Attack:
    def attack(obs: Observation, *, on_step: object = None) -> LabelSet:
        raise ValueError("a layer that is not there")

    return attack


class HalfSteps(FedSGD):
    def step(self, mean: Update, server_round: int) -> Update:
        return super().step({name: tensor / 2 for name, tensor in mean.items()}, server_round)


def many_rows() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(4010, 20, generator=generator)
    labels = (rows[:, :3].sum(1) > 0).long()
    return Dataset(
        name="many",
        train=Samples(rows, labels),
        test=Samples(rows[:10], labels[:10]),
        num_classes=2,
        in_shape=(20,),
        mean=(),
        std=(),
        class_names=("a", "b"),
    )


def all_stay(samples: int, seed: int, balanced: bool) -> Callable[[Dataset], tuple[Dataset, Dataset]]:
    """Public samples that are taken from nobody: clients have the same data as in any other run."""
    return lambda dataset: (dataset, dataset)
