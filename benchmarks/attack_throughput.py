"""Many updates attacked in one graph, against one after the other and against a plain loop.

``python -m benchmarks.attack_throughput``. The three take turns in one process, and the
median step counts, so that what else the machine does hits all alike; processor time is
printed beside the clock's, for a busy machine. The plain loop is what one would write
for a single image: the same objective and the same optimiser, without keeping the best
iterate or watching for numbers that are not finite.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, interpolate

from attacks.base import StepListener
from attacks.optimisation import inverting_gradients
from fl_app.models import convnet, lenet_zhu
from fl_app.types import Observation

SHAPE = (3, 32, 32)
CLASSES = 10
TV = 0.05
LR = 0.1
REPEATS = 5


@dataclass(frozen=True)
class Case:
    """A model, how many updates are attacked together, and how long each search is."""

    name: str
    model: Callable[[], nn.Module]
    threads: int
    problems: int
    steps: int
    alone: int
    """Number of problems that are also attacked one by one."""
    goal: float
    """The throughput together, in that of one by one."""


CASES = (
    Case("LeNet", lambda: lenet_zhu(CLASSES, SHAPE), threads=1, problems=32, steps=25, alone=4, goal=4.0),
    Case("ConvNet16", lambda: convnet(CLASSES, SHAPE), threads=2, problems=8, steps=8, alone=2, goal=1.3),
)


class Rate(NamedTuple):
    """Steps of one problem per second, by the clock and by processor time."""

    clock: float
    processor: float


class Stopwatch:
    """Called after every step, it notes how long the step took; of each search the first warms up."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self.last = (0.0, 0.0)

    def __call__(self, done: int, total: int, best: float) -> None:
        now = (time.perf_counter(), time.process_time())
        if done > 1:
            self.steps.append((now[0] - self.last[0], now[1] - self.last[1]))
        self.last = now

    def rate(self, problems: int) -> Rate:
        """Return the median rate, if every step was one of so many problems."""
        return Rate(*(problems / statistics.median(times) for times in zip(*self.steps, strict=True)))


def main(repeats: int = REPEATS) -> None:
    table = Table(title="Inverting Gradients, batch 1: steps of one problem per second")
    columns = ("model", "threads", "problems", "together", "one by one", "plain loop")
    ratios = ("together / one by one", "goal", "in processor time", "together / plain loop")
    for column in (*columns, *ratios):
        table.add_column(column, justify="right")
    before = torch.get_num_threads()
    for case in CASES:
        torch.set_num_threads(case.threads)
        together, alone, plain = measure(case, repeats)
        table.add_row(
            case.name,
            str(case.threads),
            str(case.problems),
            *(f"{rate.clock:.0f}" for rate in (together, alone, plain)),
            f"{together.clock / alone.clock:.2f}x",
            f"{case.goal}x",
            f"{together.processor / alone.processor:.2f}x",
            f"{together.clock / plain.clock:.2f}x",
        )
    torch.set_num_threads(before)
    Console().print(table)
    print(f"load of the machine in the last minute: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")


def measure(case: Case, repeats: int) -> tuple[Rate, Rate, Rate]:
    """Return the rates of problems solved together, one by one, and by the plain loop."""
    observations = observe(case)
    attack = inverting_gradients(steps=case.steps, tv=TV, lr=LR)
    together, alone, plain = Stopwatch(), Stopwatch(), Stopwatch()
    for _ in range(repeats):
        attack.many(observations, on_step=together)
        for observation in observations[: case.alone]:
            attack(observation, on_step=alone)
            plain_loop(observation, case.steps, on_step=plain)
    return together.rate(case.problems), alone.rate(1), plain.rate(1)


def observe(case: Case) -> Sequence[Observation]:
    """Return the gradients of smooth random images, one each, on an untrained model."""
    torch.manual_seed(0)
    model = case.model().train()
    names = [name for name, _ in model.named_parameters()]
    pixels = interpolate(torch.rand(case.problems, 3, 8, 8), size=SHAPE[1:], mode="bicubic").clamp(0, 1)
    labels = torch.arange(case.problems) % CLASSES
    gradients = [
        torch.autograd.grad(cross_entropy(model(image[None]), label[None]), list(model.parameters()))
        for image, label in zip(pixels, labels, strict=True)
    ]
    return [
        Observation(
            model=model,
            update=dict(zip(names, gradient, strict=True)),
            batch_size=1,
            input_shape=SHAPE,
            labels=label[None],
            training=True,
            mean=(0.0,) * 3,
            std=(1.0,) * 3,
        )
        for gradient, label in zip(gradients, labels, strict=True)
    ]


def plain_loop(obs: Observation, steps: int, on_step: StepListener) -> Tensor:
    """Return the image that a loop around `torch.optim.Adam` finds."""
    parameters = list(obs.model.parameters())
    target = torch.cat([gradient.flatten() for gradient in obs.update.values()])
    image = torch.rand(1, *SHAPE, requires_grad=True)
    optimiser = torch.optim.Adam([image], lr=LR)
    milestones = [steps * part // 8 for part in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones)
    for step in range(steps):
        loss = cross_entropy(obs.model(image), obs.labels)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        distance = 1 - cosine_similarity(torch.cat([g.flatten() for g in gradient]), target, dim=0)
        down, across = image.diff(dim=2).abs().mean(), image.diff(dim=3).abs().mean()
        (slope,) = torch.autograd.grad(distance + TV * (down + across), image)
        image.grad = slope.sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            image.clamp_(0, 1)
        on_step(step + 1, steps, float(distance.detach()))
    return image.detach()


if __name__ == "__main__":
    main()
