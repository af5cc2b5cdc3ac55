"""Labels of whole batches, read off the output layer of untrained ImageNet networks.

``python -m benchmarks.labels [--batches 20] [--size 64] [--samples 10 50 100] [--models …] [--defenses …]``:
EfficientNet-B0 (features of both signs) and ResNet50 (features above 0) of torchvision, 1,000
classes, untrained, in train and in eval mode, inputs and labels drawn at random. All are told the number of
samples: under a defense RLG needs it, Yin's rule would name all classes else, and counts are to add up
to it. Without a defense RLG is also tried without. The time is that after the gradient.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attacks.base import LabelAttack, LabelSet
from attacks.labels import bias_labels, rlg, yin_labels
from attacks.score import score
from fl_app.models.torchvision_cpu import import_torchvision
from fl_app.transforms import drop_smallest, identity, keep_topk, prune_dual, take_sign
from fl_app.types import Observation, RoundContext, Truth, Update

CLASSES = 1000
MODELS = {"efficientnet_b0": "classifier.1", "resnet50": "fc"}
"""Their output layers."""
DEFENSES = {
    "none": identity(),
    "sign": take_sign(),
    "graddrop50": drop_smallest(0.5),
    "graddrop90": drop_smallest(0.9),
    "topk": keep_topk(0.2),
    "dgp": prune_dual(0.05, 0.75),
}
INFERRED = "RLG, N inferred"
ATTACKS = {INFERRED: rlg(), "RLG": rlg(), "Yin": yin_labels(), "bias": bias_labels()}


@dataclass(frozen=True)
class Row:
    """Means over the batches of one case."""

    precision: float
    recall: float
    f1: float
    exact: float
    rank_error: float | None
    """Distance of the rank from the number of samples."""
    seconds: float
    slowest: float
    counted: float
    """In how many of the batches it says how many samples each class has."""
    counts_right: float
    """In how many that is right for all classes."""


def batches(
    name: str, samples: int, training: bool, number: int, size: int
) -> Iterator[tuple[Update, Tensor]]:
    """Yield gradients of the output layer, each of a fresh network, and the labels."""
    torch.manual_seed(0)
    fresh = getattr(import_torchvision("models"), name)(weights=None).train(training)
    for seed in range(number):
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(samples, 3, size, size, generator=generator)
        labels = torch.randint(CLASSES, (samples,), generator=generator)
        network = copy.deepcopy(fresh)  # a step in train mode changes the statistics of BatchNorm
        yield output_gradients(network, MODELS[name], inputs, labels), labels


def measure(attack: LabelAttack, seen: Sequence[tuple[Observation, Tensor]]) -> Row:
    """Score one attack on batches."""
    scores, errors, seconds, counted, right = [], [], [], [], []
    for obs, labels in seen:
        began = time.process_time()
        found = attack(obs)
        seconds.append(time.process_time() - began)
        counted.append(found.counts is not None)
        right.append(found.counts is not None and _counts(found) == Counter(labels.tolist()))
        names_alone = LabelSet(found.labels)  # only which classes there are, as in the paper
        scores.append(score(names_alone, Truth(torch.zeros(len(labels), 1, 1, 1), labels))["labels"])
        errors += [] if found.rank is None else [abs(found.rank - len(labels))]
    means = [statistics.mean(s[key] for s in scores) for key in ("precision", "recall", "f1", "exact")]
    error = statistics.mean(errors) if errors else None
    spent = statistics.mean(seconds), max(seconds)
    return Row(*means, error, *spent, statistics.mean(counted), statistics.mean(right))


def header(case: Sequence[str]) -> str:
    """Return the first two lines of a table."""
    measured = ["P", "R", "F1", "EM", "S error", "CPU s", "slowest", "counted", "right"]
    columns = [*case, "attack", *measured]
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def line(case: Sequence[str], attack: str, row: Row) -> str:
    """Return a row of a table."""
    error = "–" if row.rank_error is None else f"{row.rank_error:.2f}"
    numbers = [f"{value:.3f}" for value in (row.precision, row.recall, row.f1, row.exact)]
    spent = [f"{value:.2f}" for value in (row.seconds, row.slowest, row.counted, row.counts_right)]
    return f"| {' | '.join([*case, attack, *numbers, error, *spent])} |"


def main(
    models: Sequence[str] = tuple(MODELS),
    samples: Sequence[int] = (10, 50, 100),
    defenses: Sequence[str] = tuple(DEFENSES),
    number: int = 20,
    size: int = 64,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(header(["model", "mode", "N", "defense"]), flush=True)
    for name in models:
        network = getattr(import_torchvision("models"), name)(weights=None)
        for training in (True, False):
            for count in samples:
                drawn = list(batches(name, count, training, number, size))
                for defense in defenses:
                    case = [name, "train" if training else "eval", str(count), defense]
                    for attack, method in ATTACKS.items():
                        if attack == INFERRED and defense != "none":
                            continue
                        told = None if attack == INFERRED else count
                        seen = [(observe(network, update, defense, told), labels) for update, labels in drawn]
                        print(line(case, attack, measure(method, seen)), flush=True)


def output_gradients(network: nn.Module, layer: str, inputs: Tensor, labels: Tensor) -> Update:
    names = [f"{layer}.weight", f"{layer}.bias"]
    loss = cross_entropy(network(inputs), labels)
    slopes = torch.autograd.grad(loss, [network.get_parameter(name) for name in names])
    return dict(zip(names, slopes, strict=True))


def _counts(found: LabelSet) -> Counter[int]:
    return Counter(torch.repeat_interleave(found.labels, found.counts).tolist())


def observe(network: nn.Module, update: Update, defense: str, samples: int | None) -> Observation:
    transform = DEFENSES[defense]
    context = RoundContext(1, 0, torch.Generator().manual_seed(0))
    sent, _ = transform.apply(update, transform.init(update), context)
    return Observation(network, sent, num_classes=CLASSES, batch_size=samples)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.labels", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--samples", nargs="+", type=int, default=[10, 50, 100])
    parser.add_argument("--defenses", nargs="+", choices=DEFENSES, default=list(DEFENSES))
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--size", type=int, default=64)
    asked = parser.parse_args()
    main(asked.models, asked.samples, asked.defenses, asked.batches, asked.size)
