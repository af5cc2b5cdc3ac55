"""The learned attacker beside the hand-written adaptive one, on LeNet and single images.

``python -m benchmarks.learned --data FOLDER [--images 4] [--examples 1000] [--steps 300]``. Untrained LeNet,
batch 1, labels granted, training images of CIFAR-10 known to both; victims are test images 80 and on.
The hand-written attacker is `inverting_gradients` with the law of photographs at its default weight.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch

from attacks.learned import learned
from attacks.metrics import psnr, ssim
from attacks.optimisation import inverting_gradients
from benchmarks.peers import public_images, read_images
from benchmarks.photographs import DATA, observe
from fl_app.models import lenet_zhu
from fl_app.transforms import identity, prune_dual, take_sign
from fl_app.types import Observation, RoundContext, Update

FIRST_IMAGE = 80
DEFENSES = {"none": identity(), "DGP 5 % / 75 %": prune_dual(0.05, 0.75), "signs": take_sign()}


def main(folder: Path, images: int, examples: int, steps: int) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = lenet_zhu(num_classes=10, in_shape=(3, 32, 32))
    classes = sorted((folder / "test").iterdir())[:images]
    pixels = read_images([sorted(one.iterdir())[FIRST_IMAGE] for one in classes])
    known = public_images(folder)
    print(
        "| defense | attack | PSNR dB | SSIM | best SSIM | CPU s an image |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for name, transform in DEFENSES.items():

        def defend(update: Update, transform=transform) -> Update:  # type: ignore[no-untyped-def]
            ctx = RoundContext(1, 0, torch.Generator().manual_seed(0))
            return transform.apply(update, transform.init(update), ctx)[0]

        seen: list[Observation] = []
        for label, one in enumerate(pixels):
            raw = observe(model, one[None], torch.tensor([label]))
            sent = defend(raw.update)
            masks = {key: entries != 0 for key, entries in sent.items()}
            knows = {"known": known, "defend": defend, "defense": transform.traces, "round": 1}
            seen.append(replace(raw, update=sent, sent=masks, **knows))  # type: ignore[arg-type]
        hand = inverting_gradients(steps=steps, prior="photographs", rehearsals=0, adaptive=True)
        own = learned(examples=examples)
        attacks = {"hand-written": hand.many, "learned": lambda every, own=own: [own(obs) for obs in every]}
        for who, attack in attacks.items():
            start = time.process_time()
            found = torch.cat([result.images for result in attack(seen)])
            spent = (time.process_time() - start) / len(seen)
            alike = ssim(found, pixels)
            print(
                f"| {name} | {who} | {psnr(found, pixels).mean():.1f} | {alike.mean():.2f} "
                f"| {alike.max():.2f} | {spent:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.learned", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    main(args.data, args.images, args.examples, args.steps)
