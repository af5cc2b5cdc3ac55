"""Value of BatchNorm statistics to GradInversion: the attack with and without its statistics prior.

``python -m benchmarks.batch_statistics [--data FOLDER] [--batches N] [--steps N]``, with an image
folder of CIFAR-10. ConvNet16 is trained for a few epochs; the victims are batches of four test
pictures. A client in train mode that sends its buffers gives its own batch's statistics away; of
one in eval mode the attacker has the running ones. Settings were chosen on other test pictures.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

import torch
import torch.nn.functional as F
from scipy.stats import t as student
from torch import Tensor, nn

from attacks.metrics import match, psnr
from attacks.optimisation import gradinversion
from fl_app.data import Dataset, imagefolder
from fl_app.data.dataset import Samples, normalise, pixels
from fl_app.models import convnet
from fl_app.types import Observation

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"
EPOCHS, PER_CLASS, AT_ONCE, RATE = 3, 250, 50, 2e-3
"""Training: passes, pictures of each class, pictures a step, and Adam's step size."""
BATCH, BATCHES = 4, 6
REPORTED = 1000
"""The shuffled test pictures before this one are for choosing settings."""
STEPS = 350


@dataclass(frozen=True, eq=False)
class Comparison:
    """Mean PSNR of each batch (N,), with the statistics and without."""

    informed: Tensor
    without: Tensor
    seconds: float
    """CPU time per attack."""

    def difference(self) -> tuple[float, float, float]:
        """Return the mean paired difference in dB and its 95 % interval (Student)."""
        apart = self.informed - self.without
        half = student.ppf(0.975, len(apart) - 1) * apart.std().item() / sqrt(len(apart))
        mean = apart.mean().item()
        return mean, mean - half, mean + half


def trained_convnet(
    data: Dataset,
    *,
    epochs: int = EPOCHS,
    per_class: int = PER_CLASS,
    extend: Callable[[nn.Module], nn.Module] = lambda model: model,
) -> nn.Module:
    """Return ConvNet16, extended, after a few epochs on the first training pictures of each class."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = extend(convnet(data.num_classes, data.in_shape, width=16)).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    labels = data.train.labels
    used = torch.cat([(labels == c).nonzero().flatten()[:per_class] for c in range(data.num_classes)])
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        for part in used[torch.randperm(len(used), generator=generator)].split(AT_ONCE):
            optimiser.zero_grad()
            _loss(model, data, data.train.take(part)).backward()
            optimiser.step()
    return model


def victims(data: Dataset, batches: int, *, first: int = REPORTED) -> list[Samples]:
    """Return batches of test pictures, from the one numbered ``first`` of a fixed shuffle."""
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(1))
    if first + batches * BATCH > len(order):
        raise ValueError(f"victims: {len(order)} test pictures have no {batches} batches from {first} on")
    return [data.test.take(part) for part in order[first : first + batches * BATCH].split(BATCH)]


def observe(model: nn.Module, data: Dataset, batch: Samples, *, training: bool) -> Observation:
    """Return what the server sees of one step of a client that sends its buffers."""
    client = copy.deepcopy(model).train(training)
    gradients = torch.autograd.grad(_loss(client, data, batch), list(client.parameters()))
    names = [name for name, _ in client.named_parameters()]
    return Observation(
        model,
        dict(zip(names, gradients, strict=True)),
        batch_size=len(batch),
        num_classes=data.num_classes,
        input_shape=data.in_shape,
        mean=data.mean,
        std=data.std,
        labels=batch.labels,
        buffers=dict(client.named_buffers()),
        training=training,
    )


def compare(
    model: nn.Module,
    data: Dataset,
    batches: Sequence[Samples],
    *,
    training: bool,
    steps: int,
    **settings: float,
) -> Comparison:
    """Attack every batch twice, from the same start; ``settings`` go to both attacks."""
    informed = gradinversion(steps=steps, restarts=1, **settings)  # type: ignore[arg-type]
    without = gradinversion(steps=steps, restarts=1, **settings | {"statistics": 0.0})  # type: ignore[arg-type]
    began = time.process_time()
    rows = []
    for batch in batches:
        obs = observe(model, data, batch, training=training)
        truth = pixels(batch.inputs, "cpu")
        # one by one: on this model a stack of batches takes longer than the batches in turn
        rows.append([_ratio(attack(obs).images, truth) for attack in (informed, without)])
    scores = torch.tensor(rows)
    return Comparison(scores[:, 0], scores[:, 1], (time.process_time() - began) / scores.numel())


def main(folder: Path = DATA, batches: int = BATCHES, steps: int = STEPS) -> None:
    """Print the table."""
    if not folder.is_dir():
        print(f"benchmarks.batch_statistics: expected the photographs of CIFAR-10 at {folder}, found nothing")
        return
    torch.set_num_threads(1)
    data = imagefolder(folder)
    model = trained_convnet(data)
    chosen = victims(data, batches)
    print(f"ConvNet16, {EPOCHS} epochs, batches of {BATCH}, {steps} steps, one start: mean PSNR in dB\n")
    print("| client | statistics | batches | with | without | difference, paired, 95 % | CPU s an attack |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for training, mode, source in ((True, "train mode", "its batch's"), (False, "eval mode", "running")):
        found = compare(model, data, chosen, training=training, steps=steps)
        mean, low, high = found.difference()
        cells = [
            mode,
            source,
            str(batches),
            f"{found.informed.mean():.2f}",
            f"{found.without.mean():.2f}",
            f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]",
            f"{found.seconds:.0f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


def _loss(model: nn.Module, data: Dataset, batch: Samples) -> Tensor:
    inputs = normalise(pixels(batch.inputs, "cpu"), data.mean, data.std)
    return F.cross_entropy(model(inputs), batch.labels)


def _ratio(images: Tensor, truth: Tensor) -> float:
    return psnr(images[match(images, truth)], truth).mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="GradInversion with and without BatchNorm statistics")
    parser.add_argument("--data", type=Path, default=DATA, help="image folder of CIFAR-10")
    parser.add_argument("--batches", type=int, default=BATCHES)
    parser.add_argument("--steps", type=int, default=STEPS)
    given = parser.parse_args()
    main(given.data, given.batches, given.steps)
