"""Leakage in honest settings, beside the headline of single images: batches, local steps, a trained model.

``python -m benchmarks.realistic --data FOLDER [--steps 300] [--batches 1]``. LeNet, labels granted, the
training images known to the attacker, test images 70 and on of each class as victims (tuning used others).
Each row changes one more thing, down to a batch of 32 and five local steps on a model that was trained
before. The client computes in train mode; LeNet has no layer for which that matters.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.metrics import match, psnr, ssim
from attacks.optimisation import inverting_gradients, sme
from benchmarks.peers import public_images, read_images
from benchmarks.photographs import DATA, MEAN, STD, observe
from fl_app.models import lenet_zhu
from fl_app.types import Known, Observation

FIRST_IMAGE = 70
LR = 0.05
LOCAL_STEPS = 5
TRAINING_STEPS, TRAINING_BATCH = 600, 64


def main(folder: Path, steps: int, batches: int) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = lenet_zhu(num_classes=10, in_shape=(3, 32, 32))
    known = public_images(folder)
    trained = train(copy.deepcopy(model), known)
    print("| setting | attack | images | PSNR dB | SSIM | best SSIM |\n|---|---|---|---|---|---|", flush=True)
    rows = {
        "headline: batch 1, one gradient, untrained": (model, 1, None),
        "batch 8": (model, 8, None),
        "batch 32": (model, 32, None),
        f"batch 32, {LOCAL_STEPS} local steps": (model, 32, LOCAL_STEPS),
        f"realistic: batch 32, {LOCAL_STEPS} local steps, trained model": (trained, 32, LOCAL_STEPS),
        "batch 1, one gradient, trained model": (trained, 1, None),
    }
    for title, (start, size, local) in rows.items():
        attacks = {"ig": inverting_gradients} | ({} if local is None else {"sme": sme})
        for name, attack in attacks.items():
            found, truth = [], []
            for number in range(batches if size > 1 else 8 * batches):
                pixels, labels = victims(folder, size, number)
                seen = replace(see(start, pixels, labels, local), known=known)
                made = attack(steps=steps, prior="photographs", weight=0.01, rehearsals=0)(seen)
                order = match(made.images, pixels)
                found.append(made.images[torch.tensor(order)])
                truth.append(pixels)
            images, real = torch.cat(found), torch.cat(truth)
            alike = ssim(images, real)
            print(
                f"| {title} | {name} | {len(real)} | {psnr(images, real).mean():.1f} "
                f"| {alike.mean():.2f} | {alike.max():.2f} |",
                flush=True,
            )


def victims(folder: Path, size: int, number: int) -> tuple[Tensor, Tensor]:
    """Return one of the batches of test images, their classes in turn."""
    classes = sorted((folder / "test").iterdir())
    chosen = range(number * size, (number + 1) * size)
    labels = [i % len(classes) for i in chosen]
    files = [
        sorted(classes[label].iterdir())[FIRST_IMAGE + i // len(classes)]
        for label, i in zip(labels, chosen, strict=True)
    ]
    return read_images(files), torch.tensor(labels)


def see(model: nn.Module, pixels: Tensor, labels: Tensor, local: int | None) -> Observation:
    """Return what the server sees of one gradient, or of ``local`` steps on the batch."""
    if local is None:
        return observe(model, pixels, labels)
    moved = copy.deepcopy(model)
    for _ in range(local):
        descend(moved, normalised(pixels), labels)
    seen = observe(model, pixels, labels)
    before = dict(model.named_parameters())
    delta = {name: (p - before[name]).detach() for name, p in moved.named_parameters()}
    return replace(seen, update=delta, local_steps=local, lr=LR, local_batch_size=len(labels))


def train(model: nn.Module, known: Known) -> nn.Module:
    """Return the model after some steps on public images."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(TRAINING_STEPS):
        chosen = torch.randint(len(known.labels), (TRAINING_BATCH,), generator=generator)
        descend(model, normalised(known.images[chosen]), known.labels[chosen])
    return model


def descend(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Take one step of SGD."""
    parameters = list(model.parameters())
    slopes = torch.autograd.grad(F.cross_entropy(model(inputs), labels), parameters)
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter -= LR * slope


def normalised(pixels: Tensor) -> Tensor:
    """Return what the model sees of pixels."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.realistic", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batches", type=int, default=1)
    args = parser.parse_args()
    main(args.data, args.steps, args.batches)
