"""Deep Leakage from Gradients (Zhu et al. 2019) and iDLG (Zhao et al. 2020): match the gradient itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from attacks.optimisation.image_attack import ImageAttack
from attacks.optimisation.lbfgs import LBFGS
from attacks.optimisation.matching import Recipe
from attacks.optimisation.objectives import relative_distance
from attacks.optimisation.optimisers import Variables
from attacks.optimisation.problem import Problem
from attacks.optimisation.round_robin import RoundRobin
from fl_app.types import Observation

HISTORY = 100
PATIENCE = 15
"""Number of turns per sample in which the objective must fall noticeably."""


@dataclass(frozen=True, kw_only=True)
class DeepLeakage(ImageAttack):
    """Recover a batch of images and their labels by the squared distance of gradients over all layers.

    Images start from N(0, 1) as the model sees them. ``labels="optimise"`` searches for the labels
    too, which start as the softmax of such numbers. Each of ``steps`` is up to 20 iterations of
    L-BFGS on one sample of the batch, in turn. A search ends when the distance, relative to the
    observed gradient's square, is below ``tolerance``, and starts anew from another draw when it
    breaks or no longer gets closer.
    """

    steps: int = 300
    labels: str = "optimise"
    tolerance: float = 1e-8

    who: ClassVar[str] = "dlg"
    sources: ClassVar[tuple[str, ...]] = ("optimise", "granted", "infer")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"{self.who}: tolerance must be in [0, 1), got {self.tolerance}")

    def problem(self, obs: Observation) -> Problem:
        """Return the matching problem, in double precision."""
        return super().problem(obs).double()

    def known(self, obs: Observation, problem: Problem) -> tuple[Tensor, list[str]]:
        """Return the initial labels; unused if labels are searched for."""
        if self.labels != "optimise":
            return super().known(obs, problem)
        nothing = torch.zeros(problem.batch_size, dtype=torch.long, device=problem.device)
        return nothing, ["labels searched for with the images"]

    def recipe(self, problem: Problem, observations: Sequence[Observation]) -> Recipe:
        """Return L-BFGS on the distance of gradients, without a box: the paper has none."""
        shapes: dict[str, tuple[int, ...]] = {"images": (problem.batch_size, *problem.input_shape)}
        if self.labels == "optimise":
            shapes["logits"] = (problem.batch_size, _classes(problem))

        def draw(generator: torch.Generator) -> Variables:
            dtype = problem.target.dtype
            return {
                name: torch.randn(shape, generator=generator, dtype=dtype, device="cpu")
                for name, shape in shapes.items()
            }

        def decode(variables: Variables, labels: Tensor) -> tuple[Tensor, Tensor]:
            if "logits" in variables:
                labels = variables["logits"].softmax(dim=-1)
            return variables["images"], labels

        return Recipe(
            draw=draw,
            decode=decode,
            matching=relative_distance,
            # L-BFGS as in the paper but for the line search: without one, searches blow up
            optimiser=partial(RoundRobin, partial(LBFGS, history=HISTORY), problem.batch_size),
            schedule=lambda progress: 1.0,
            steps=self.steps,
            stop_below=self.tolerance,
            patience=PATIENCE * problem.batch_size,
            remembered=2 * HISTORY * sum(math.prod(shape) for shape in shapes.values()),
        )

    def read(
        self, obs: Observation, problem: Problem, variables: Variables, labels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the pixels, and the likeliest labels where they were searched for."""
        if "logits" in variables:
            labels = variables["logits"].argmax(dim=-1)
        return problem.to_pixels(variables["images"]), labels


@dataclass(frozen=True, kw_only=True)
class ImprovedDeepLeakage(DeepLeakage):
    """Read the labels off the output layer's gradient, then search for the images alone as `dlg` does."""

    labels: str = field(default="infer", init=False)

    who: ClassVar[str] = "idlg"


dlg = DeepLeakage
idlg = ImprovedDeepLeakage


def _classes(problem: Problem) -> int:
    blank = problem.target.new_zeros(problem.batch_size, *problem.input_shape)
    with torch.no_grad():
        return int(problem.model(blank).shape[1])
