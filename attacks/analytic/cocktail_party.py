"""Cocktail party (Kariyappa et al., ICML 2023): a batch as independent sources behind a linear layer.

The rows of the first linear layer's gradient are mixtures of the samples, as microphones hear mixtures of
speakers. Independent component analysis finds the unmixing that makes the sources least Gaussian, over the
pixels as observations. That needs no ReLU and no sparse error signals, unlike SPEAR, and works behind noise;
but it is no exact solution: photographs are not independent, so that sources keep a part of each other.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from attacks.analytic.first_linear import as_images, labels_of, layer_gradients, refusal, scale_free_problem
from attacks.base import Reconstruction, StepListener
from fl_app.types import Observation

WHO = "cocktail_party"
RANK_FLOOR = 1e-6
SETTLED = 1e-8
"""A step that turns no direction by more than this ends the search."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CocktailParty:
    """Recover a batch by symmetric FastICA with the contrast log cosh, and sizes from the bias.

    Premises, checked: a linear layer with bias sees the flattened input, and its gradient has at least as
    many dimensions as samples. Of ``restarts`` the least Gaussian sources are kept.
    """

    steps: int = 300
    restarts: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1:
            raise ValueError(
                f"{WHO}: steps and restarts must be at least 1, got {self.steps}, {self.restarts}"
            )

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update; a failed premise gives no images, and a note."""
        problem = scale_free_problem(obs, who=WHO)
        found = layer_gradients(problem, obs)
        if found is None:
            return refusal(problem, "expected a linear layer with bias that sees the input, got none")
        _, weight, bias = found
        count = problem.batch_size
        _, values, right = torch.linalg.svd(weight, full_matrices=False)
        rank = int((values > RANK_FLOOR * values[0]).sum()) if values[0] > 0 else 0
        if rank < count:
            return refusal(problem, f"a gradient of rank {rank} has no {count} independent sources")
        # pixels as observations: centred and white
        mixtures = right[:count]
        centre = mixtures.mean(dim=1, keepdim=True)
        spread, axes = torch.linalg.eigh((mixtures - centre) @ (mixtures - centre).t() / mixtures.shape[1])
        if float(spread[0]) <= RANK_FLOOR * float(spread[-1]):
            return refusal(problem, "the sources differ by a constant alone")
        whitening = axes @ torch.diag(spread.rsqrt()) @ axes.t()
        white = whitening @ (mixtures - centre)
        turn, contrast = max(
            (self._unmixed(white, restart, on_step) for restart in range(self.restarts)),
            key=lambda one: one[1],
        )
        # the sources themselves are mixed of the uncentred rows: their levels come back with them
        sources = turn @ whitening @ mixtures
        # weight = signals^T sources and bias = sum of signals, up to the size of each source
        signals = torch.linalg.lstsq(sources.t(), weight.t()).solution
        sizes = torch.linalg.lstsq(signals.t(), bias[:, None]).solution
        if bool((sizes.abs() < RANK_FLOOR * sizes.abs().max()).any()):
            return refusal(problem, "a source has no size: its error signal is not in the bias")
        inputs = sources / sizes
        missed = float((signals.t() @ sizes - bias[:, None]).norm() / bias.norm().clamp_min(1e-300))
        labels, about = labels_of(obs, problem, count, who=WHO)
        return Reconstruction(
            images=as_images(inputs, problem),
            labels=labels,
            objective=-contrast,
            notes=(
                *problem.notes,
                *about,
                f"{count} sources, {contrast:.3f} from a Gaussian; the bias is missed by {missed:.1e}",
                "photographs are not independent: sources keep a part of each other",
            ),
        )

    def _unmixed(self, white: Tensor, restart: int, on_step: StepListener | None) -> tuple[Tensor, float]:
        """Return a rotation (K, K) of white mixtures to sources, and their distance from a Gaussian."""
        generator = torch.Generator().manual_seed(self.seed + restart)
        count = len(white)
        turn = _orthogonal(torch.randn(count, count, generator=generator, dtype=white.dtype).to(white))
        for step in range(self.steps):
            sources = torch.tanh(turn @ white)
            slopes = (1 - sources.square()).mean(dim=1)
            moved = _orthogonal(sources @ white.t() / white.shape[1] - slopes[:, None] * turn)
            turned = float(((moved * turn).sum(dim=1).abs() - 1).abs().max())
            turn = moved
            if on_step is not None:
                on_step(restart * self.steps + step + 1, self.restarts * self.steps, turned)
            if turned < SETTLED:
                break
        sources = turn @ white
        log_cosh = (sources.abs() + torch.nn.functional.softplus(-2 * sources.abs()) - math.log(2)).mean(
            dim=1
        )
        return turn, float((log_cosh - _GAUSSIAN).square().sum())


cocktail_party = CocktailParty

_GAUSSIAN = 0.37456721
"""Mean of log cosh under the standard normal law."""


def _orthogonal(matrix: Tensor) -> Tensor:
    """Return the nearest matrix with orthonormal rows."""
    left, _, right = torch.linalg.svd(matrix)
    nearest: Tensor = left @ right
    return nearest
