"""Theorem 1 of dual gradient pruning beside experiments, step by step.

``python -m benchmarks.dgp_theorem [--data FOLDER] [--rounds 50] [--steps 300]``. Eight clients with one
photograph each send gradients of an untrained LeNet, batch 1, lr 0.02, pruned by 5 % / 75 % with error
feedback. First table: what the first update withholds, and how far the gradients of recovered images are from
the raw one, for an attacker who matches every entry and for one who knows the defense. Second table: how far
the sum of the sent updates is from the sum of the gradients.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from attacks.metrics import psnr, ssim
from attacks.optimisation import inverting_gradients
from benchmarks.photographs import DATA, observe, photographs
from fl_app.models import lenet_zhu
from fl_app.transforms import error_feedback, prune_dual
from fl_app.types import RoundContext

LR = 0.02
SHOWN = (1, 2, 5, 10, 20, 50)


def main(folder: Path = DATA, rounds: int = 50, steps: int = 300) -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    photos = photographs(folder)
    torch.manual_seed(0)
    model = lenet_zhu(num_classes=10, in_shape=tuple(photos.shape[1:]))
    _first_update(model, photos, steps)
    _sums(model, photos, rounds)


def _first_update(model: nn.Module, photos: Tensor, steps: int) -> None:
    transform = error_feedback(prune_dual(0.05, 0.75))
    seen, raw = [], []
    for label, photo in enumerate(photos):
        obs = observe(copy.deepcopy(model), photo[None], torch.tensor([label]))
        sent, _ = transform.apply(obs.update, transform.init(obs.update), _round(1))
        raw.append(flat(obs.update))
        masks = {name: entries != 0 for name, entries in sent.items()}
        seen.append(replace(obs, update=sent, sent=masks, round=1, defense=transform.traces))
    gamma = [
        float((flat(o.update) - g).square().sum() / g.square().sum()) for o, g in zip(seen, raw, strict=True)
    ]
    print(
        f"γ₁ = {mean(gamma):.3f}; √γ₁ = {mean([v**0.5 for v in gamma]):.3f}, "
        "which Theorem 1 adds to the distance"
    )
    print("| matched | cosine distance to what was sent | to the raw gradient | PSNR dB | SSIM |")
    print("|---|---|---|---|---|", flush=True)
    for name, adaptive in (
        ("every entry, unsent ones as 0", False),
        ("sent entries, rule for the others", True),
    ):
        results = inverting_gradients(steps=steps, adaptive=adaptive).many(seen)
        found = torch.cat([result.images for result in results])
        theirs = [
            flat(observe(copy.deepcopy(model), image[None], torch.tensor([label])).update)
            for label, image in enumerate(found)
        ]
        sent_away = [apart(a, flat(o.update)) for a, o in zip(theirs, seen, strict=True)]
        raw_away = [apart(a, g) for a, g in zip(theirs, raw, strict=True)]
        scores = f"{psnr(found, photos).mean():.1f} | {ssim(found, photos).mean():.2f}"
        print(f"| {name} | {mean(sent_away):.3f} | {mean(raw_away):.3f} | {scores} |", flush=True)


def _sums(model: nn.Module, photos: Tensor, rounds: int) -> None:
    """Print how near the sums of sent updates come to the sums of gradients."""
    transform = error_feedback(prune_dual(0.05, 0.75))
    model = copy.deepcopy(model)
    names = [name for name, _ in model.named_parameters()]
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    states = [transform.init(zeros) for _ in photos]
    total = [(torch.zeros(flat(zeros).numel()), torch.zeros(flat(zeros).numel())) for _ in photos]
    print(
        "\n| rounds | withheld / longest gradient | ‖Σ sent − Σ gradients‖ / ‖Σ gradients‖ "
        "| cosine distance |"
    )
    print("|---|---|---|---|")
    longest = 0.0
    for number in range(1, rounds + 1):
        step = torch.zeros(flat(zeros).numel())
        for client, photo in enumerate(photos):
            update = observe(copy.deepcopy(model), photo[None], torch.tensor([client])).update
            sent, states[client] = transform.apply(update, states[client], _round(number))
            longest = max(longest, float(flat(update).norm()))
            total[client] = (total[client][0] + flat(sent), total[client][1] + flat(update))
            step += flat(sent) / len(photos)
        if number in SHOWN:
            withheld = mean([float((g - s).norm()) / longest for s, g in total])
            away = mean([float((g - s).norm() / g.norm()) for s, g in total])
            angle = mean([apart(s, g) for s, g in total])
            print(f"| {number} | {withheld:.2f} | {away:.3f} | {angle:.3f} |", flush=True)
        with torch.no_grad():
            parts = step.split([zeros[name].numel() for name in names])
            for (_, weight), part in zip(model.named_parameters(), parts, strict=True):
                weight -= LR * part.view_as(weight)


def flat(update: Mapping[str, Tensor]) -> Tensor:
    """Return all entries as one vector."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in update.values()])


def apart(a: Tensor, b: Tensor) -> float:
    """Return the cosine distance."""
    return float(1 - a @ b / (a.norm() * b.norm()))


def mean(values: list[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


def _round(number: int) -> RoundContext:
    return RoundContext(number, 0, torch.Generator().manual_seed(0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.dgp_theorem", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    main(args.data, args.rounds, args.steps)
