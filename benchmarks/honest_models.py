"""Honest models on which a client's look at its model must stay silent, untrained and trained.

Those for tuning and those that are held out share no seed, and of no architecture the same
recipe of training; many architectures of the held-out ones are in no other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl_app import models
from fl_app.data import Dataset
from fl_app.data.dataset import Samples, normalise, pixels

BATCH = 32


class Training(NamedTuple):
    """Training of a model before its inspection."""

    optimiser: str
    """Name of a class in torch.optim."""
    steps: int
    rate: float
    decay: float = 0.0
    classes: int = 10
    """The first so many have samples, as a client's own data may."""
    samples: int = 5000
    """Samples of the training set; a few are learned by heart."""

    def __str__(self) -> str:
        more = [f"decay {self.decay:g}"] if self.decay else []
        more += [f"{self.classes} classes"] if self.classes < 10 else []
        more += [f"{self.samples} samples"] if self.samples < 5000 else []
        return ", ".join([f"{self.optimiser} {self.rate:g} x {self.steps}", *more])


@dataclass(frozen=True)
class Honest:
    """A model that nobody manipulated."""

    name: str
    build: Callable[..., nn.Module]
    """Called with the number of classes and the shape of an image."""
    seed: int
    training: Training | None = None

    def __str__(self) -> str:
        return f"{self.name}, seed {self.seed}, {self.training or 'untrained'}"


def make(honest: Honest, data: Dataset) -> nn.Module:
    """Return the model, trained on the first samples of ``data`` if it is to be."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(honest.seed)
        model = honest.build(data.num_classes, data.in_shape).train()
    if honest.training is not None:
        train(model, data, honest.training, seed=honest.seed)
    return model


def train(model: nn.Module, data: Dataset, training: Training, *, seed: int) -> None:
    """Train ``model`` in place."""
    settings: dict[str, float] = {"lr": training.rate, "weight_decay": training.decay}
    if training.optimiser == "SGD":
        settings["momentum"] = 0.9
    optimiser = getattr(torch.optim, training.optimiser)(model.parameters(), **settings)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    used = order[data.train.labels[order] < training.classes][: training.samples]
    for _ in range(training.steps):
        batch = data.train.take(used[torch.randint(len(used), (BATCH,), generator=generator)])
        optimiser.zero_grad()
        F.cross_entropy(model(as_inputs(data, batch)), batch.labels).backward()
        optimiser.step()


def as_inputs(data: Dataset, samples: Samples) -> Tensor:
    """Return images as a model sees them."""
    return normalise(pixels(samples.inputs, "cpu"), data.mean, data.std)


def _of(name: str, target: str, **settings: object) -> tuple[str, Callable[..., nn.Module]]:
    return name, lambda classes, shape: getattr(models, target)(classes, shape, **settings)


def _untrained(kinds: Sequence[tuple[str, Callable[..., nn.Module]]], seeds: Sequence[int]) -> list[Honest]:
    return [Honest(*kind, seed) for kind in kinds for seed in seeds]


LENET, LENET_SIGMOID = _of("LeNet", "lenet_zhu"), _of("LeNet sigmoid", "lenet_zhu", activation="sigmoid")
MLP, MLP_64, MLP_1024 = (_of(f"MLP {width}", "mlp", hidden=[width]) for width in (256, 64, 1024))
CONVNET, CONVNET_GROUP = _of("ConvNet", "convnet"), _of("ConvNet group norm", "convnet", norm="group")
MCMAHAN = _of("McMahan CNN", "mcmahan_cnn")
RESNET18, RESNET20, VGG11 = _of("ResNet18", "resnet18"), _of("ResNet20", "resnet20"), _of("VGG11", "vgg11")

FIRST: Sequence[Honest] = (
    *_untrained([LENET, LENET_SIGMOID, MLP, MLP_64, MLP_1024, CONVNET, MCMAHAN], (0, 1)),
    *_untrained([CONVNET_GROUP, RESNET18, RESNET20, VGG11], (0,)),
    Honest(*LENET, 2, Training("SGD", 300, 0.02)),
    Honest(*LENET, 3, Training("Adam", 600, 1e-3)),
    Honest(*LENET_SIGMOID, 2, Training("Adam", 300, 1e-3)),
    Honest(*MLP, 2, Training("SGD", 300, 0.02)),
    Honest(*MLP, 3, Training("SGD", 1000, 0.02, samples=500)),
    Honest(*MLP_64, 2, Training("Adam", 300, 1e-3)),
    Honest(*MLP_1024, 2, Training("SGD", 200, 0.02)),
    Honest(*CONVNET, 2, Training("Adam", 60, 2e-3)),
    Honest(*MCMAHAN, 2, Training("SGD", 60, 0.02)),
    Honest(*RESNET20, 2, Training("SGD", 40, 0.1)),
    Honest(*RESNET18, 2, Training("SGD", 3, 0.02)),
    Honest(*VGG11, 2, Training("SGD", 6, 0.02)),
)

CNN6, FCN3, VGG13 = _of("CNN6", "cnn6"), _of("FCN3", "fcn3"), _of("VGG13", "vgg13")
RESNET34, RESNET50, RESNET56 = (_of(f"ResNet{depth}", f"resnet{depth}") for depth in (34, 50, 56))
DEEP_MLP = _of("MLP 512, 128", "mlp", hidden=[512, 128])
TANH_MLP = _of("MLP 2000 tanh", "mlp", hidden=[2000], activation="tanh")
SIGMOID_MLP = _of("MLP 300, 300 sigmoid", "mlp", hidden=[300, 300], activation="sigmoid")
BARE_CONVNET = _of("ConvNet without norm", "convnet", norm="none")
VGG11_GROUP = _of("VGG11 group norm", "vgg11", norm="group")
RESNET18_GROUP = _of("ResNet18 group norm", "resnet18", norm="group")
SMOOTH_RESNET = _of("ResNet20 sigmoid, no strides", "resnet20", activation="sigmoid", strides=False)
WIDE_LENET = _of("LeNet tanh, wide", "lenet_zhu", activation="tanh", wide_init=True)

# held out at first; five of them alarmed, and the thresholds were chosen anew
SECOND: Sequence[Honest] = (
    *_untrained([CNN6, FCN3, DEEP_MLP, TANH_MLP, SIGMOID_MLP, WIDE_LENET, BARE_CONVNET], (100,)),
    *_untrained([RESNET34, RESNET50, RESNET56, VGG13], (100,)),
    *_untrained([VGG11_GROUP, RESNET18_GROUP, SMOOTH_RESNET], (100,)),
    *_untrained([LENET, LENET_SIGMOID, MLP, CONVNET, MCMAHAN], (100,)),
    Honest(*CNN6, 101, Training("Adam", 300, 1e-3)),
    Honest(*FCN3, 101, Training("SGD", 150, 0.01)),
    Honest(*DEEP_MLP, 101, Training("Adam", 400, 1e-3, decay=1e-3)),
    Honest(*TANH_MLP, 101, Training("SGD", 100, 0.005)),
    Honest(*SIGMOID_MLP, 101, Training("Adam", 300, 1e-3)),
    Honest(*MLP, 101, Training("SGD", 400, 0.05, decay=5e-3)),
    Honest(*MLP, 102, Training("Adam", 300, 1e-3, classes=2)),
    Honest(*MLP, 103, Training("SGD", 200, 0.01, classes=1)),
    Honest(*MLP, 104, Training("Adam", 1500, 1e-3, samples=200)),
    Honest(*LENET, 101, Training("SGD", 400, 0.05, decay=5e-3)),
    Honest(*LENET, 102, Training("Adam", 300, 2e-3, classes=2)),
    Honest(*LENET_SIGMOID, 101, Training("SGD", 400, 0.1)),
    Honest(*MCMAHAN, 101, Training("Adam", 100, 1e-3)),
    Honest(*CONVNET, 101, Training("SGD", 60, 0.05)),
    Honest(*BARE_CONVNET, 101, Training("Adam", 100, 1e-3)),
    Honest(*RESNET56, 101, Training("Adam", 15, 1e-3)),
    Honest(*RESNET34, 101, Training("Adam", 2, 1e-3)),
    Honest(*RESNET50, 101, Training("Adam", 2, 1e-3)),
    Honest(*VGG13, 101, Training("Adam", 4, 1e-3)),
    Honest(*VGG11_GROUP, 101, Training("Adam", 4, 1e-3)),
)

NARROW_MLP = _of("MLP 128, 128, 128", "mlp", hidden=[128, 128, 128])
GELU_MLP = _of("MLP 700 gelu", "mlp", hidden=[700], activation="gelu")
LEAKY_MLP = _of("MLP 400, 200 leaky", "mlp", hidden=[400, 200], activation="leaky_relu")
BROAD_CONVNET = _of("ConvNet width 24", "convnet", width=24)
GELU_LENET = _of("LeNet gelu", "lenet_zhu", activation="gelu")
NARROW_CNN6 = _of("CNN6, second 20", "cnn6", second=20)
BARE_VGG = _of("VGG11 without norm", "vgg11", norm="none")
RESNET20_GROUP = _of("ResNet20 group norm", "resnet20", norm="group")

HELD_OUT: Sequence[Honest] = (
    *_untrained([NARROW_MLP, GELU_MLP, LEAKY_MLP, BROAD_CONVNET, GELU_LENET, NARROW_CNN6], (200,)),
    *_untrained([BARE_VGG, RESNET20_GROUP, MCMAHAN, FCN3, DEEP_MLP, RESNET56, RESNET50], (201,)),
    Honest(*NARROW_MLP, 202, Training("SGD", 500, 0.03)),
    Honest(*GELU_MLP, 202, Training("AdamW", 400, 1e-3, decay=0.05)),
    Honest(*LEAKY_MLP, 202, Training("RMSprop", 300, 5e-4)),
    Honest(*BROAD_CONVNET, 202, Training("AdamW", 40, 1e-3)),
    Honest(*GELU_LENET, 202, Training("SGD", 800, 0.03)),
    Honest(*NARROW_CNN6, 202, Training("SGD", 300, 0.02)),
    Honest(*BARE_VGG, 202, Training("Adam", 5, 1e-3)),
    Honest(*RESNET20_GROUP, 202, Training("SGD", 40, 0.05)),
    Honest(*RESNET20, 203, Training("SGD", 40, 0.2, decay=5e-4)),
    Honest(*MCMAHAN, 203, Training("SGD", 120, 0.05)),
    Honest(*FCN3, 203, Training("Adam", 150, 5e-4)),
    Honest(*DEEP_MLP, 203, Training("SGD", 600, 0.05, decay=1e-3)),
    Honest(*TANH_MLP, 203, Training("Adam", 100, 5e-4)),
    Honest(*MLP, 204, Training("Adam", 400, 1e-3, classes=3)),
    Honest(*MLP, 205, Training("SGD", 300, 0.02, classes=1)),
    Honest(*LENET, 204, Training("Adam", 500, 1e-3, classes=2)),
    Honest(*LENET, 205, Training("SGD", 1000, 0.02, samples=300)),
    Honest(*LENET_SIGMOID, 204, Training("Adam", 500, 3e-3)),
    Honest(*MLP_64, 204, Training("SGD", 1500, 0.01)),
)
