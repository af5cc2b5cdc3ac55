"""Leakage of a stream: other images in every round, DGP with error feedback, all rounds matched together.

``python -m benchmarks.streams --data FOLDER [--rounds 6] [--steps 400] [--clients 2]``. LeNet, batch 1, rate
0.1, labels granted, training images known; test images 60 and on of each class. The attacker knows the
defense. Rows: the first round undefended, the first round alone, and some rounds of the stream as a whole.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attacks.metrics import psnr, ssim
from attacks.optimisation import inverting_gradients
from benchmarks.peers import public_images, read_images
from benchmarks.photographs import DATA, observe
from fl_app.models import lenet_zhu
from fl_app.transforms import error_feedback, prune_dual
from fl_app.types import Observation, RoundContext

FIRST_IMAGE, LR, WEIGHT = 60, 0.1, 0.02


def main(folder: Path, rounds: int, steps: int, clients: int) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = lenet_zhu(num_classes=10, in_shape=(3, 32, 32))
    classes = sorted((folder / "test").iterdir())
    places = [divmod(i, len(classes)) for i in range(clients * rounds)]
    files = [sorted(classes[label].iterdir())[FIRST_IMAGE + row] for row, label in places]
    pixels = read_images(files).unflatten(0, (clients, rounds))
    labels = torch.tensor([label for _, label in places]).view(clients, rounds)
    known, transform = public_images(folder), error_feedback(prune_dual(0.05, 0.75))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    states = [transform.init(weights) for _ in range(clients)]
    raw: list[Observation] = []
    seen: list[list[Observation]] = [[] for _ in range(clients)]
    for number in range(1, rounds + 1):
        for client in range(clients):
            place = client, number - 1
            obs = observe(copy.deepcopy(model), pixels[place][None], labels[place][None])
            obs = replace(obs, known=known, round=number, same_batch=False)
            raw += [obs] if number == 1 else []
            ctx = RoundContext(number, client, torch.Generator().manual_seed(client))
            sent, states[client] = transform.apply(obs.update, states[client], ctx)
            masks = {name: entries != 0 for name, entries in sent.items()}
            seen[client].append(replace(obs, update=sent, sent=masks, defense=transform.traces))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight -= LR * torch.stack([own[-1].update[name] for own in seen]).mean(dim=0)
    attack = inverting_gradients(steps=steps, prior="photographs", weight=WEIGHT, rehearsals=0, adaptive=True)
    print("| images | attack | PSNR dB | SSIM | best SSIM |\n|---|---|---|---|---|", flush=True)
    first = pixels[:, 0]
    _row("round 1", "undefended", torch.cat([attack(obs).images for obs in raw]), first)
    _row("round 1", "round 1 alone", torch.cat([attack(own[0]).images for own in seen]), first)
    whole = replace(attack, together="stream")
    results = [whole(replace(own[-1], history=tuple(own[:-1]))) for own in seen]
    for number in sorted({1, 2, rounds // 2 + 1, rounds}):
        found = [(*result.earlier, result.images)[number - 1] for result in results]
        _row(f"round {number}", "stream", torch.cat(found), pixels[:, number - 1])


def _row(images: str, attack: str, found: Tensor, true: Tensor) -> None:
    alike = ssim(found, true)
    print(
        f"| {images} | {attack} | {psnr(found, true).mean():.1f} | {alike.mean():.2f} | {alike.max():.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.streams", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--clients", type=int, default=2)
    args = parser.parse_args()
    main(args.data, args.rounds, args.steps, args.clients)
