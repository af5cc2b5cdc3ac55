"""Images of a batch that a server recovers by planting a block, or trap weights, in its model.

``python -m benchmarks.imprint [--data FOLDER] [--batches N] [--functional NAME]``, with an image folder
of CIFAR-10. The bins are fitted to 8,000 training pictures, the victims are test pictures, each
batch drawn anew; an image counts if it is recovered above 70 dB. LeNet (ReLU) is behind the
block, an untrained perceptron behind the traps, everything in float32. With equally likely bins, a
sample of a batch of B is alone in one of K with probability (1 - 1/K)^(B - 1): the bound.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.active import imprint, trap_weights
from attacks.base import Reconstruction
from attacks.metrics import match, psnr
from fl_app.data import Dataset, imagefolder
from fl_app.data.dataset import Samples, normalise, pixels
from fl_app.models import lenet_zhu, mlp
from fl_app.types import Observation

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"
PUBLIC, BATCHES, EXACT = 8000, 20, 70.0
SIZES, BINS = (16, 64, 256), (100, 256, 1024)
FUNCTIONALS = ("mode32", "mean", "random")
DELTA_BINS, LOCAL = 256, tuple((steps, lr) for steps in (1, 2, 5) for lr in (0.01, 0.1))
SCALES = (0.9, 0.93, 0.95, 0.97, 0.99)


@dataclass(frozen=True)
class Recovered:
    """The shares of each batch's images that were recovered."""

    shares: Tensor
    seconds: float
    """CPU time per batch."""

    @property
    def mean(self) -> float:
        return self.shares.mean().item()

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.shares.std().item() / sqrt(len(self.shares))


def public_pixels(data: Dataset, count: int = PUBLIC) -> Tensor:
    """Return training pictures for the bins: none of them is a victim."""
    if len(data.train) < count:
        raise ValueError(f"public_pixels: expected {count} training pictures, got {len(data.train)}")
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    return pixels(data.train.inputs[order[:count]], "cpu")


def victims(data: Dataset, size: int, batches: int) -> Iterator[Samples]:
    """Return batches of test pictures; two batches may share some, but none has one twice."""
    generator = torch.Generator().manual_seed(size)
    for _ in range(batches):
        yield data.test.take(torch.randperm(len(data.test), generator=generator)[:size])


def observe(
    model: nn.Module, data: Dataset, batch: Samples, steps: int | None = None, lr: float = 0.01
) -> Observation:
    """Return what the server sees of one gradient, or of that many local steps on the batch."""
    inputs = normalise(pixels(batch.inputs, "cpu"), data.mean, data.std)
    client = copy.deepcopy(model)
    optimiser = torch.optim.SGD(client.parameters(), lr=lr)
    for _ in range(steps or 1):
        optimiser.zero_grad()
        F.cross_entropy(client(inputs), batch.labels).backward()
        if steps is not None:
            optimiser.step()
    before = dict(model.named_parameters())
    update = {
        name: p.grad.clone() if steps is None and p.grad is not None else (p - before[name]).detach()
        for name, p in client.named_parameters()
    }
    return Observation(
        model,
        update,
        lr=None if steps is None else lr,
        local_steps=steps,
        batch_size=len(batch),
        num_classes=data.num_classes,
        input_shape=data.in_shape,
        mean=data.mean,
        std=data.std,
        training=True,
    )


def measure(
    attack: Callable[[Observation], Reconstruction],
    model: nn.Module,
    data: Dataset,
    batches: Iterator[Samples],
    steps: int | None = None,
    lr: float = 0.01,
) -> Recovered:
    """Attack every batch, and count the images that are recovered above 70 dB."""
    began, shares = time.process_time(), []
    for batch in batches:
        images = attack(observe(model, data, batch, steps, lr)).images
        shares.append(_share(images, pixels(batch.inputs, "cpu")))
    return Recovered(torch.tensor(shares), (time.process_time() - began) / len(shares))


def bound(bins: int, size: int) -> float:
    """Return the probability that a sample is alone in its bin, if all bins are equally likely."""
    return (1 - 1 / bins) ** (size - 1)


def main(
    folder: Path = DATA,
    batches: int = BATCHES,
    functional: str = FUNCTIONALS[0],
    sizes: Sequence[int] = SIZES,
) -> None:
    """Print the table."""
    if not folder.is_dir():
        print(f"benchmarks.imprint: expected the photographs of CIFAR-10 at {folder}, found nothing")
        return
    torch.set_num_threads(1)
    data = imagefolder(folder)
    public = public_pixels(data)
    print("| attack | update | batch | batches | recovered | error | bound | >= bound - 2 errors | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for bins in BINS:
        attack, model = _planted(data, public, bins, functional)
        for size in sizes:
            found = measure(attack, model, data, victims(data, size, batches))
            _print_row(f"imprint, {functional}, {bins} bins", "gradient", size, found, bound(bins, size))
    attack, model = _planted(data, public, DELTA_BINS, functional)
    for steps, lr in LOCAL:
        found = measure(attack, model, data, victims(data, sizes[0], batches), steps, lr)
        update = f"delta of {steps} step{'s' * (steps > 1)}, lr {lr}"
        _print_row(
            f"imprint, {functional}, {DELTA_BINS} bins", update, sizes[0], found, bound(DELTA_BINS, sizes[0])
        )
    for scale in SCALES:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            perceptron = mlp(data.num_classes, data.in_shape)
        traps = trap_weights(scale)
        model = traps.plant(perceptron, data.in_shape, mean=data.mean, std=data.std)
        found = measure(traps, model, data, victims(data, sizes[0], batches))
        _print_row(f"trap weights, scale {scale}", "gradient", sizes[0], found, None)


def _planted(
    data: Dataset, public: Tensor, bins: int, functional: str
) -> tuple[Callable[[Observation], Reconstruction], nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = lenet_zhu(data.num_classes, data.in_shape)
    attack = imprint(bins, functional)
    return attack, attack.plant(model, data.in_shape, public=public, mean=data.mean, std=data.std)


def _share(images: Tensor, truth: Tensor) -> float:
    pairs = [(i, row) for row, i in enumerate(match(images, truth)) if i is not None]
    if not pairs:
        return 0.0
    found, rows = (list(side) for side in zip(*pairs, strict=True))
    return int((psnr(images[found], truth[rows]) > EXACT).sum()) / len(truth)


def _print_row(attack: str, update: str, size: int, found: Recovered, limit: float | None) -> None:
    judged = ["", ""]
    if limit is not None:
        judged = [f"{limit:.3f}", "yes" if found.mean >= limit - 2 * found.error else "no"]
    cells = [attack, update, str(size), str(len(found.shares)), f"{found.mean:.3f}", f"{found.error:.3f}"]
    print(f"| {' | '.join([*cells, *judged, f'{found.seconds:.2f}'])} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="images that a planted block or trap weights give away")
    parser.add_argument("--data", type=Path, default=DATA, help="image folder of CIFAR-10")
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--functional", choices=FUNCTIONALS, default=FUNCTIONALS[0])
    given = parser.parse_args()
    main(given.data, given.batches, given.functional)
