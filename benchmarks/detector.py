"""Alarms of a client's inspection: on honest models, and on manipulated ones.

``python -m benchmarks.detector [--data FOLDER] [--part honest|attacks|cost]``, with an image
folder of CIFAR-10. Thresholds were chosen on the honest models for tuning, the rate is that of
those held out. For manipulated ones the share of a batch that the server still
recovers stands beside what gives it away: a disguise that spoils the attack is none.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.active.detect import CHECKS, Finding, inspect_model, measure_layers
from benchmarks import honest_models
from benchmarks.disguises import (
    Planted,
    among,
    block,
    noisy,
    permuted,
    recovered,
    scaled,
    scrambled,
    seen_directions,
    shifted,
    traps,
    uneven_traps,
    untouched,
    within,
)
from benchmarks.honest_models import FIRST, HELD_OUT, SECOND, Honest, as_inputs, make
from fl_app.data import Dataset, imagefolder
from fl_app.data.dataset import Samples

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"
PARTS = ("honest", "attacks", "cost")
OWN = 64
"""Number of pictures that a client shows its model."""
VICTIMS, BATCH = 64, 16
FIRST_VICTIM = 1000
SEEDS = (10, 11, 12)
"""Seeds of the honest models that are manipulated."""
VIEWS = ("weights", "noise", "own")
"""Inputs of the inspection: weights alone, smooth noise, and the client's own pictures."""


@dataclass(frozen=True, eq=False)
class Client:
    """Pictures of one client, and the victims of the attack."""

    data: Dataset
    own: Tensor
    victims: Sequence[Samples]

    @classmethod
    def of(cls, data: Dataset) -> Client:
        order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(1))
        batches = order[FIRST_VICTIM : FIRST_VICTIM + VICTIMS].split(BATCH)
        own = as_inputs(data, data.test.take(order[:OWN]))
        return cls(data, own, [data.test.take(batch) for batch in batches])

    def measure(self, model: nn.Module, expected: nn.Module | None = None) -> dict[str, list[Finding]]:
        """Return the numbers that each view has of a model."""
        return {
            "weights": measure_layers(model, expected=expected),
            "noise": measure_layers(model, in_shape=self.data.in_shape, expected=expected),
            "own": measure_layers(model, inputs=self.own, expected=expected),
        }


def alarms(found: Iterable[Finding]) -> frozenset[str]:
    """Return the checks whose number is above the threshold."""
    return frozenset(each.check for each in found if each.value > CHECKS[each.check].threshold)


def honest(client: Client) -> None:
    """Print the false alarms of both halves, and the largest numbers that honest models have."""
    for half, chosen in (("tuning", FIRST), ("tuning, second half", SECOND), ("held out", HELD_OUT)):
        counts: Counter[str] = Counter()
        largest: dict[str, tuple[float, str]] = {}
        notes = []
        for one in chosen:
            model = make(one, client.data)
            measured = client.measure(model, one.build(client.data.num_classes, client.data.in_shape))
            for view, numbers in measured.items():
                found = alarms(numbers)
                counts[view] += bool(found)
                notes += [f"  alarm: {one}, {view}: {', '.join(sorted(found))}"] if found else []
                for number in numbers:
                    value = (number.value, f"{one}, {number.layer}")
                    largest[number.check] = max(largest.get(number.check, (0.0, "")), value)
        untrained = sum(one.training is None for one in chosen)
        print(f"\n{half}: {len(chosen)} models, {untrained} untrained, {len(chosen) - untrained} trained")
        print("; ".join(map(str, chosen)))
        print(f"false alarms: {', '.join(f'{view} {counts[view]} of {len(chosen)}' for view in VIEWS)}")
        print("\n".join(notes))
        for check, (value, where) in largest.items():
            print(
                f"  largest {check}: {value:.3g} (threshold {CHECKS[check].threshold:g}), {where}", flush=True
            )


def attacks(client: Client) -> None:
    """Print what gives each manipulation away, and what its server recovers."""
    print(f"\n{VICTIMS} victims in batches of {BATCH}, {len(SEEDS)} models each\n")
    print(f"| manipulation | recovered | {' | '.join(VIEWS)} | architecture agreed on |")
    print("|---|---|" + "---|" * (len(VIEWS) + 1), flush=True)
    for who, data, plant in _manipulations(client.data):
        theirs = replace(client, data=data, own=Client.of(data).own)
        planted = [plant(seed) for seed in SEEDS]
        share = sum(recovered(each, data, client.victims) for each in planted) / len(planted)
        measured = [theirs.measure(each.model, each.honest) for each in planted]
        found = [{view: alarms(numbers) for view, numbers in each.items()} for each in measured]
        agreed = [each["weights"] & {"other architecture"} for each in found]
        cells = [_cell([each[view] - {"other architecture"} for each in found]) for view in VIEWS]
        print(f"| {who} | {share:.0%} | {' | '.join(cells)} | {_cell(agreed)} |", flush=True)


def cost(client: Client) -> None:
    """Print the time of one look, in training steps of a batch of 32."""
    print("\n| model | one look / one training step of 32 |")
    print("|---|---|", flush=True)
    untrained = {one.name: one for one in (*SECOND, *FIRST) if one.training is None}
    for one in untrained.values():
        model = make(one, client.data)
        inputs, labels = client.own[:32], torch.arange(32) % client.data.num_classes
        expected = one.build(client.data.num_classes, client.data.in_shape)
        optimiser = torch.optim.SGD(model.parameters(), lr=1e-6)
        looks = partial(inspect_model, model, inputs=client.own, expected=expected)
        step = partial(_step, model, optimiser, inputs, labels)
        # in turns, and the best of each: what else the machine does hits both alike
        times = [(_seconds(looks), _seconds(step)) for _ in range(3)]
        look, train = (min(each) for each in zip(*times, strict=True))
        print(f"| {one.name} | {look / train:.2f} |", flush=True)


def _manipulations(data: Dataset) -> Iterator[tuple[str, Dataset, Callable[[int], Planted]]]:
    """Name, data and maker (from a seed) of everything that is tried."""

    def mlp(width: int, seed: int) -> nn.Module:
        return _make(honest_models.MLP_1024 if width == 1024 else honest_models.MLP, seed)

    def _make(kind: tuple[str, Callable[..., nn.Module]], seed: int) -> nn.Module:
        return make(Honest(*kind, seed), data)

    def front(bins: int, functional: str, seed: int, kind: object = honest_models.LENET) -> Planted:
        return block(_make(kind, seed), data, bins, functional, seed)  # type: ignore[arg-type]

    avoid = seen_directions(data)
    for width in (256, 1024):
        yield (
            f"none: MLP {width}",
            data,
            lambda seed, width=width: untouched(mlp(width, seed)),
        )
    for functional in ("mean", "mode32", "random"):
        for bins in (16, 100, 256, 1024):
            yield f"block, {functional}, {bins} bins", data, partial(front, bins, functional)
    for kind in (honest_models.CONVNET, honest_models.RESNET20, honest_models.MLP):
        yield f"block before {kind[0]}, mode32, 100 bins", data, partial(front, 100, "mode32", kind=kind)
    for bins in (3, 5, 6, 7):
        yield f"block, mode32, {bins} bins", data, partial(front, bins, "mode32")
    yield "block of 100, rows scaled", data, lambda seed: scaled(front(100, "mode32", seed), seed)
    yield "block of 100, rows permuted", data, lambda seed: permuted(front(100, "mode32", seed), seed)
    for strength in (0.01, 0.1, 1.0, 3.0, 10.0):
        yield (
            f"block of 100 (mean), white noise {strength:g}",
            data,
            lambda seed, strength=strength: noisy(front(100, "mean", seed), strength, seed=seed),
        )
    for strength in (0.001, 0.01, 0.1):
        yield (
            f"block of 100 (mean), columns noised {strength:g}",
            data,
            lambda seed, strength=strength: scrambled(front(100, "mean", seed), strength, seed),
        )
    for bins in (4, 5, 16, 100):
        yield (
            f"{bins} of 1024 rows of an MLP (random)",
            data,
            lambda seed, bins=bins: within(mlp(1024, seed), data, bins, "random", seed),
        )
    for functional, strength in (("random", 1.0), ("random", 10.0), ("mean", 30.0)):
        yield (
            f"100 of 1024 rows ({functional}), noise {strength:g} where photographs have little",
            data,
            lambda seed, functional=functional, strength=strength: noisy(
                within(mlp(1024, seed), data, 100, functional, seed), strength, avoid, seed
            ),
        )
    yield (
        "the same, noise 10, and columns shifted alike for all classes",
        data,
        lambda seed: shifted(noisy(within(mlp(1024, seed), data, 100, "random", seed), 10, avoid, seed)),
    )
    yield (
        "the same, noise 10, and columns noised 0.05",
        data,
        lambda seed: scrambled(
            noisy(within(mlp(1024, seed), data, 100, "random", seed), 10, avoid, seed), 0.05
        ),
    )
    for strength in (3.0, 10.0, 30.0):
        yield (
            f"100 of 1024 rows (mean), white noise {strength:g}",
            data,
            lambda seed, strength=strength: noisy(
                within(mlp(1024, seed), data, 100, "mean", seed), strength, seed=seed
            ),
        )
    yield from _trap_manipulations(data, mlp)


def _trap_manipulations(
    data: Dataset, mlp: Callable[[int, int], nn.Module]
) -> Iterator[tuple[str, Dataset, Callable[[int], Planted]]]:
    raw = replace(data, mean=(0.0,) * len(data.mean), std=(1.0,) * len(data.std))
    for scale in (0.9, 0.95, 0.97, 0.99, 1.0):
        yield f"traps, {scale}", data, lambda seed, s=scale: traps(mlp(256, seed), data, s, seed)
    for scale in (0.95, 0.97, 0.99):
        yield (
            f"traps, {scale}, uneven signs",
            data,
            lambda seed, s=scale: uneven_traps(mlp(256, seed), data, s, seed=seed),
        )
    for name, theirs in (("", data), (", raw pixels", raw)):
        for scale in (0.95, 0.97, 0.99):
            yield (
                f"traps, {scale}, uneven signs and sums{name}",
                theirs,
                lambda seed, s=scale, d=theirs: uneven_traps(mlp(256, seed), d, s, 1.0, seed),
            )
    for share in (0.5, 0.25):
        yield (
            f"traps, 0.97, in {share:g} of the rows",
            data,
            lambda seed, share=share: among(traps(mlp(256, seed), data, 0.97, seed), share),
        )
    yield (
        "none: MLP 256, raw pixels",
        raw,
        lambda seed: untouched(mlp(256, seed)),
    )


def _cell(found: Sequence[frozenset[str]]) -> str:
    """Say how many were found, and by which checks all or some."""
    counts = Counter(check for checks in found for check in checks)
    by = ", ".join(check if n == len(found) else f"{check} ({n})" for check, n in sorted(counts.items()))
    return f"{sum(map(bool, found))} of {len(found)}" + (f": {by}" if by else "")


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, inputs: Tensor, labels: Tensor) -> None:
    optimiser.zero_grad()
    F.cross_entropy(model(inputs), labels).backward()
    optimiser.step()


def _seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def main(folder: Path = DATA, parts: Sequence[str] = PARTS) -> None:
    """Print the tables."""
    if not folder.is_dir():
        print(f"benchmarks.detector: expected the photographs of CIFAR-10 at {folder}, found nothing")
        return
    torch.set_num_threads(1)
    client = Client.of(imagefolder(folder))
    for part in parts:
        {"honest": honest, "attacks": attacks, "cost": cost}[part](client)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="false alarms and detections of inspect_model")
    parser.add_argument("--data", type=Path, default=DATA, help="image folder of CIFAR-10")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; all by default")
    given = parser.parse_args()
    main(given.data, given.part or PARTS)
