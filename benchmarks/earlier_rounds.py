"""Leakage through error feedback to an attacker who sees several rounds of a client with few samples.

``python -m benchmarks.earlier_rounds [--data FOLDER] [--rounds 4] [--steps 600]``. Eight clients with
one photograph each train LeNet by FedSGD, batch 1, lr 0.1, under pruning with error feedback; the
attacker knows the defense, and that a client has no other samples. Three attacks: on the first
round, on the last alone, and on all of them together.
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
from benchmarks.photographs import DATA, observe, photographs
from fl_app.models import lenet_zhu
from fl_app.transforms import Transform, error_feedback, keep_topk, prune_dual
from fl_app.types import Observation, RoundContext

LR = 0.1
INNER = {
    "top-k": (keep_topk(0.2), {"_target_": "keep_topk"}),
    "DGP": (prune_dual(0.05, 0.75), {"_target_": "prune_dual"}),
}


def main(folder: Path = DATA, rounds: int = 4, steps: int = 600) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    photos = photographs(folder)
    print(f"| defense | round 1 | round {rounds} alone | rounds 1 to {rounds} together |")
    print("|---|---|---|---|", flush=True)
    for name, (inner, config) in INNER.items():
        defense = {"_target_": "error_feedback", "inner": config}
        seen = watch(photos, error_feedback(inner), defense, rounds)
        cases = [
            [client[0] for client in seen],
            [client[-1] for client in seen],
            [replace(client[-1], history=tuple(client[:-1])) for client in seen],
        ]
        cells = []
        for observations in cases:
            results = inverting_gradients(steps=steps, adaptive=True).many(observations)
            images = torch.cat([result.images for result in results])
            cells.append(f"{psnr(images, photos).mean():.2f} dB, SSIM {ssim(images, photos).mean():.2f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def watch(
    photos: Tensor, transform: Transform, defense: dict[str, object], rounds: int
) -> list[list[Observation]]:
    """Return what the server sees of each client, round by round."""
    torch.manual_seed(0)
    model = lenet_zhu(num_classes=10, in_shape=tuple(photos.shape[1:]))
    states = [transform.init({n: p.detach() for n, p in model.named_parameters()}) for _ in photos]
    seen: list[list[Observation]] = [[] for _ in photos]
    for number in range(1, rounds + 1):
        for client, photo in enumerate(photos):
            obs = observe(copy.deepcopy(model), photo[None], torch.tensor([client]))
            ctx = RoundContext(number, client, torch.Generator().manual_seed(client))
            sent, states[client] = transform.apply(obs.update, states[client], ctx)
            masks = {name: entries != 0 for name, entries in sent.items()}
            knows = {"round": number, "defense": defense, "same_batch": True}
            seen[client].append(replace(obs, update=sent, sent=masks, **knows))  # type: ignore[arg-type]
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight -= LR * torch.stack([client[-1].update[name] for client in seen]).mean(dim=0)
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.earlier_rounds", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=600)
    args = parser.parse_args()
    main(args.data, args.rounds, args.steps)
