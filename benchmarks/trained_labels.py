"""Labels of batches of CIFAR-10, read off models that have already learnt something.

``python -m benchmarks.trained_labels FOLDER [--model lenet] [--steps 0 500 2000] [--samples 4 8 24]
[--batches 50]``, with an image folder of CIFAR-10. After so many steps of Adam on the training images,
gradients of batches of test images are attacked, in eval mode. Attacks are told the number of
samples, but for one row of RLG.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.labels import ATTACKS, INFERRED, header, line, measure
from fl_app.data import Dataset, Samples, imagefolder, normalise, pixels
from fl_app.models import lenet_zhu, resnet18
from fl_app.types import Observation

MODELS = {"lenet": lenet_zhu, "resnet18": resnet18}
BATCH, LR = 64, 1e-3
"""Batch size and learning rate of training."""


def stages(model: nn.Module, dataset: Dataset, steps: Sequence[int]) -> Iterator[int]:
    """Train the model, and yield after each of so many ``steps``, which are in order."""
    optimiser = torch.optim.Adam(model.parameters(), lr=LR)
    generator = torch.Generator().manual_seed(0)
    done = 0
    for stage in steps:
        model.train()
        for _ in range(stage - done):
            inputs, labels = _draw(dataset, dataset.train, BATCH, generator)
            optimiser.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimiser.step()
        done = stage
        model.eval()
        yield stage


def observe(model: nn.Module, inputs: Tensor, labels: Tensor, told: bool) -> Observation:
    """Return what the server sees of one gradient."""
    names = [name for name, _ in model.named_parameters()]
    slopes = torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters()))
    update = dict(zip(names, slopes, strict=True))
    return Observation(
        model,
        update,
        num_classes=len(update["output.weight"]),
        batch_size=len(labels) if told else None,
        input_shape=tuple(inputs.shape[1:]),
    )


@torch.no_grad()
def accuracy(model: nn.Module, dataset: Dataset) -> float:
    """Return how often the model is right about a thousand test images."""
    inputs, labels = _draw(dataset, dataset.test, 1000, torch.Generator().manual_seed(1))
    return float((model(inputs).argmax(dim=1) == labels).double().mean())


def main(folder: Path, name: str, steps: Sequence[int], samples: Sequence[int], number: int) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dataset = imagefolder(folder, limit_per_class=500)
    model = MODELS[name](num_classes=dataset.num_classes, in_shape=dataset.in_shape)
    print(header(["model", "steps", "N"]), flush=True)
    for stage in stages(model, dataset, sorted(steps)):
        print(f"after {stage} steps: {accuracy(model, dataset):.1%} of test images right", flush=True)
        for count in samples:
            generator = torch.Generator().manual_seed(2)
            drawn = [_draw(dataset, dataset.test, count, generator) for _ in range(number)]
            for attack, method in ATTACKS.items():
                seen = [(observe(model, *batch, attack != INFERRED), batch[1]) for batch in drawn]
                print(line([name, str(stage), str(count)], attack, measure(method, seen)), flush=True)


def _draw(
    dataset: Dataset, samples: Samples, number: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    chosen = torch.randperm(len(samples.labels), generator=generator)[:number]
    images = pixels(samples.inputs[chosen], "cpu")
    return normalise(images, dataset.mean, dataset.std), samples.labels[chosen]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.trained_labels", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", choices=MODELS, default="lenet")
    parser.add_argument("--steps", nargs="+", type=int, default=[0, 500, 2000])
    parser.add_argument("--samples", nargs="+", type=int, default=[4, 8, 24])
    parser.add_argument("--batches", type=int, default=50)
    asked = parser.parse_args()
    main(asked.folder, asked.model, asked.steps, asked.samples, asked.batches)
