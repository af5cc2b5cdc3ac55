"""FLamby's Fed-Heart-Disease beside ours: accuracy of a logistic regression on four hospitals, five seeds.

python -m benchmarks.heart_disease DATA [training|privacy]    DATA has heart-disease/processed.*.data

FLamby's pooled data set, on which it tests all trainings, is scaled by the training rows of all hospitals
together; each hospital's own data are scaled by its own. Both are done here.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from scipy.stats import t
from torch import nn
from torch.nn import functional as F

import fl_app
from fl_app.data import Dataset, Samples, heart_disease
from fl_app.data.heart_disease import CENTRES

SEEDS = range(5)
ROUNDS, STEPS, BATCH = 15, 100, 4
COMMON = (
    "data=heart_disease partition=natural clients=4 model=mlp model.hidden=[] model.one_logit=true "
    f"attack=none rounds={ROUNDS} training.steps={STEPS} batch_size={BATCH} evaluate_every={ROUNDS} "
    "threads=1 checkpoint=false"
).split()
ADAPTIVE = "strategy.beta_2=0.999 strategy.tau=1e-8 strategy.eta=0.01"
ROWS = {
    "FedAvg": ("strategy=fed_avg lr=0.001", 0.748),
    "FedProx": ("strategy=fed_prox strategy.proximal_mu=0.01 lr=0.001", None),
    "FedAdam": (f"strategy=fed_adam {ADAPTIVE} lr=0.01", 0.779),
    "FedYogi": (f"strategy=fed_yogi {ADAPTIVE} lr=0.003162", None),
}
"""Overrides of each row, and the published accuracy on the pooled test rows; rates are FLamby's."""
PARTS = ("training", "privacy")
BY_CENTRE = {"cleveland": 0.731, "hungarian": 0.719, "switzerland": 0.650, "va": 0.640}
PRIVATE = {None: 0.7125, 5.0: 0.704, 1.0: 0.685, 0.1: 0.606}
"""Published mean over the centres by epsilon, at delta 1e-4 and a clipping bound of 1.1."""


def model() -> nn.Module:
    """Return the regression of the trainings that are no federation."""
    return nn.Linear(13, 1)


def accuracy(weight: torch.Tensor, bias: torch.Tensor, samples: Samples) -> float:
    """Return the share of rows on the right side."""
    logits = F.linear(samples.inputs, weight, bias).flatten()
    return float(((logits > 0) == samples.labels.bool()).double().mean())


def centre(samples: Samples, number: int) -> Samples:
    """Return one hospital's rows."""
    assert samples.sources is not None
    return samples.take(samples.sources == number)


def batches(samples: Samples, generator: torch.Generator) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Go through shuffled passes without end."""
    while True:
        for rows in torch.randperm(len(samples), generator=generator).split(BATCH):
            yield samples.inputs[rows], samples.labels[rows].float()


def pooled(data: Dataset, seed: int) -> nn.Module:
    """Train on all rows, scaled together, with Adam, 50 passes."""
    torch.manual_seed(seed)
    net, generator = model(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters(), lr=0.001)
    draws = batches(data.train, generator)
    for _ in range(50 * -(-len(data.train) // BATCH)):
        _step(net, optimiser, *next(draws))
    return net


def cyclic(data: Dataset, seed: int) -> nn.Module:
    """Train in one hospital after the other, in a new order each cycle."""
    torch.manual_seed(seed)
    net, generator = model(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
    draws = [batches(centre(data.train, number), generator) for number in range(len(CENTRES))]
    visits: list[int] = []
    for _ in range(ROUNDS * len(CENTRES)):
        visits = visits or torch.randperm(len(CENTRES), generator=generator).tolist()
        one = draws[visits.pop()]
        for _ in range(STEPS):
            _step(net, optimiser, *next(one))
    return net


def _step(
    net: nn.Module, optimiser: torch.optim.Optimizer, inputs: torch.Tensor, labels: torch.Tensor
) -> None:
    optimiser.zero_grad()
    loss = F.binary_cross_entropy_with_logits(net(inputs).flatten(), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def federated(root: Path, overrides: str, seed: int, folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the regression that a federation learns."""
    found = fl_app.run(*COMMON, *overrides.split(), f"data.root={root}", f"seed={seed}", f"run_dir={folder}")
    stored = load_file(found.folder / "model.safetensors")
    return stored["output.weight"], stored["output.bias"]


def judged(values: Sequence[float], published: float | None) -> str:
    """Return mean and deviation, and whether the published mean lies in the 95 % interval of a new seed."""
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    if published is None:
        return f"{mean:.3f} ± {spread:.3f} | – | not published"
    reach = float(t.ppf(0.975, len(values) - 1)) * spread * (1 + 1 / len(values)) ** 0.5
    word = "within noise" if abs(mean - published) <= reach else f"{mean - published:+.3f}"
    return f"{mean:.3f} ± {spread:.3f} | {published:.3f} | {word}"


def main(root: Path, part: str | None = None) -> None:
    """Train and print the rows of one part, or all."""
    data, together = heart_disease(root), heart_disease(root, scaled_together=True)
    print("| training | ours | FLamby | judged |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as work:
        if part in (None, "training"):
            _trainings(root, Path(work), data, together)
        if part in (None, "privacy"):
            _private(root, Path(work), data)


def _trainings(root: Path, work: Path, data: Dataset, together: Dataset) -> None:
    for name, (overrides, published) in ROWS.items():
        nets = [federated(root, f"{overrides} defense=none", s, work / f"{name}{s}") for s in SEEDS]
        print(f"| {name} | {judged([accuracy(*n, together.test) for n in nets], published)} |", flush=True)
        if name != "FedAvg":
            continue
        for number, place in enumerate(CENTRES):
            values = [accuracy(*net, centre(data.test, number)) for net in nets]
            print(f"| FedAvg in {place} | {judged(values, BY_CENTRE[place])} |", flush=True)
    for name, train, of, published in (
        ("cyclic", cyclic, data, 0.785),
        ("pooled", pooled, together, 0.795),
    ):
        values = []
        for seed in SEEDS:
            net = train(of, seed)
            values.append(accuracy(net.weight.detach(), net.bias.detach(), together.test))  # type: ignore[arg-type,union-attr,operator]
        print(f"| {name} | {judged(values, published)} |", flush=True)


def _private(root: Path, work: Path, data: Dataset) -> None:
    for epsilon, published in PRIVATE.items():
        private = (
            "defense=none"
            if epsilon is None
            else (
                f"defense=dp_sgd defense.clip=1.1 defense.epsilon={epsilon} defense.delta=1e-4 "
                "defense.noise_multiplier=null"
            )
        )
        nets = [federated(root, f"{ROWS['FedAvg'][0]} {private}", s, work / f"dp{epsilon}{s}") for s in SEEDS]
        values = [
            statistics.fmean(accuracy(*net, centre(data.test, i)) for i in range(len(CENTRES)))
            for net in nets
        ]
        title = "no DP" if epsilon is None else f"ε = {epsilon:g}"
        print(f"| FedAvg, mean of the centres, {title} | {judged(values, published)} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or (len(sys.argv) == 3 and sys.argv[2] not in PARTS):
        sys.exit(f"benchmarks.heart_disease: expected DATA and one of {', '.join(PARTS)}, got {sys.argv[1:]}")
    main(Path(sys.argv[1]), *sys.argv[2:])
