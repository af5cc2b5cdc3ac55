"""Robbing the Fed (Fowl et al., ICLR 2022): a planted block sorts a batch into bins, one image each.

The bin of row ``i`` holds the samples between its edge and the next. The difference of both
rows' gradients is ``sum delta_s x_s`` over these samples, and that of the biases ``sum
delta_s``: with one sample in it, their ratio is the sample. The lowest bin begins below
every image, and the topmost is unbounded and its row is read as it is, so every sample is in
exactly one bin. With ``K`` equally likely bins, a sample of a batch of ``B`` is alone with
probability ``(1 - 1/K)^(B-1)``.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence

from torch import Tensor, nn

from attacks.active.bin_edges import LAWS, law_edges, lowest_value, measure, quantile_edges
from attacks.active.bins import Bins, read_bins
from attacks.active.imprint_block import (
    GAIN,
    GAIN_OF_GRADIENTS,
    ImprintBlock,
    add_imprint,
    check_gain,
    find_block,
    functional_weights,
)
from attacks.active.pruned_bins import read_pruned_bins
from attacks.active.pruned_rows import is_pruned
from attacks.analytic.first_linear import refusal
from attacks.base import Reconstruction, StepListener
from attacks.knowledge import added_noise
from attacks.optimisation.problem import Problem, as_problem
from fl_app.types import Manipulated, Observation, Trace

WHO = "imprint"
QUANTILES = "quantiles"
LOUDER = 2.0**37
"""Gain over the noise's standard deviation at which images are exact up to rounding."""


@dataclasses.dataclass(frozen=True)
class Imprint:
    """Plant a block of ``bins`` bins, and read images off the update of a client that trained with it.

    ``functional`` is "mean" (brightness), "mode32" (a cosine) or "random" (Gaussian, drawn
    by ``seed``). ``edges``: "quantiles" of public images, "normal" or "laplace" for a law with
    their mean and deviation, or the inner edges themselves. With ``adaptive``, a pruned update is
    read where entries survive, and the gain is large enough to drown the noise that the defense
    adds to gradients; without, entries that were not sent count as zero.
    ``gain`` enlarges the rows' gradient, which drowns noise and the rounding of weights in a
    delta. A smaller gain lets several local steps move the edges less. None: 16 if the client
    sends deltas, else 2^20, or more with ``adaptive``.
    """

    bins: int = 100
    functional: str = "mode32"
    edges: str | Sequence[float] = QUANTILES
    adaptive: bool = True
    seed: int = 0
    gain: float | None = None

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ValueError(f"{WHO}: bins must be at least 2, got {self.bins}")
        functional_weights(self.functional, (1, 1, 1), self.seed)
        if self.gain is not None:
            check_gain(self.gain)
        if isinstance(self.edges, str):
            if self.edges not in (QUANTILES, *LAWS):
                choices = ", ".join((QUANTILES, *LAWS))
                raise ValueError(
                    f"{WHO}: edges must be one of {choices}, or {self.bins - 1} numbers; got {self.edges!r}"
                )
        elif len(self.edges) != self.bins - 1:
            raise ValueError(
                f"{WHO}: {self.bins} bins have {self.bins - 1} inner edges, got {len(self.edges)}"
            )
        else:
            object.__setattr__(self, "edges", tuple(self.edges))  # a list is not hashable

    def plant(
        self,
        model: nn.Module,
        in_shape: Sequence[int],
        *,
        public: Tensor | None = None,
        moments: tuple[float, float] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> nn.Module:
        """Return a copy of ``model`` with the block in front; the arguments are those of `settings`."""
        return _planted(model, self.settings(in_shape, public=public, moments=moments, mean=mean, std=std))

    def settings(
        self,
        in_shape: Sequence[int],
        *,
        public: Tensor | None = None,
        moments: tuple[float, float] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        deltas: bool = True,
        defense: Sequence[Trace] | None = None,
    ) -> dict[str, object]:
        """Return the arguments of `add_imprint` as plain data.

        ``public`` images are pixels in [0, 1] (N, C, H, W), some thousands, none of them the
        victims'; ``moments`` are mean and deviation of the functional, for a law without
        images. The model sees ``(pixel - mean) / std``, or pixels if these are None.
        ``deltas`` says whether the client takes local steps; ``defense`` has its traces.
        """
        channels = in_shape[0]
        mean, std = mean or [0.0] * channels, std or [1.0] * channels
        weights = functional_weights(self.functional, in_shape, self.seed)
        edges = self._inner_edges(weights, public, moments, mean, std)
        # a law may have edges that no image reaches; the floor is below these too
        floor = min(lowest_value(weights, in_shape, mean, std), 2 * edges[0] - edges[-1] - 1)
        return {
            "in_shape": list(in_shape),
            "functional": self.functional,
            "edges": edges,
            "floor": floor,
            "seed": self.seed,
            "gain": self.gain or self._own_gain(deltas, defense),
        }

    def manipulate(
        self,
        model: nn.Module,
        *,
        in_shape: Sequence[int],
        public: Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        deltas: bool,
        defense: Sequence[Trace] | None = None,
    ) -> Manipulated:
        """Return the planted model, and the settings with which a client builds it."""
        settings = self.settings(in_shape, public=public, mean=mean, std=std, deltas=deltas, defense=defense)
        return Manipulated(_planted(model, settings), {"imprint": settings})

    def read(self, obs: Observation) -> Bins:
        """Read every bin of an update computed on the planted model."""
        problem, path, block = self._premises(obs)
        if self.adaptive and is_pruned(obs, f"{path}.rows", math.prod(problem.input_shape)):
            found = read_pruned_bins(obs, problem, path)
            if found.single.any():
                return found
        # the zeros come from rounding alone, or too few entries survive
        return read_bins(obs, problem, path, block)

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update."""
        problem, path, _ = self._premises(obs)
        if not obs.update[f"{path}.rows.weight"].any():
            return refusal(
                problem, f"nothing of {path}.rows.weight was sent, or no sample has an error signal"
            )
        found = self.read(obs)
        inputs = found.inputs[found.shown].view(-1, *problem.input_shape)
        labels = found.labels[found.shown]
        return Reconstruction(
            images=problem.to_pixels(inputs).clamp(0, 1).to(problem.target.dtype),
            labels=labels if len(labels) and (labels >= 0).all() else None,
            notes=(*problem.notes, *found.notes),
        )

    def _own_gain(self, deltas: bool, defense: Sequence[Trace] | None) -> float:
        if deltas:  # a larger one would move the edges
            return GAIN
        return max(GAIN_OF_GRADIENTS, LOUDER * added_noise(defense) if self.adaptive else 0.0)

    def _inner_edges(
        self,
        weights: Tensor,
        public: Tensor | None,
        moments: tuple[float, float] | None,
        mean: Sequence[float],
        std: Sequence[float],
    ) -> list[float]:
        if not isinstance(self.edges, str):
            return list(self.edges)
        values = None if public is None else measure(public.cpu(), weights, mean, std)
        if self.edges == QUANTILES:
            if values is None:
                raise ValueError(f"{WHO}: quantiles need public images, got none")
            return quantile_edges(values, self.bins)
        if moments is None:
            if values is None:
                raise ValueError(
                    f"{WHO}: a law needs public images or moments (mean, deviation), got neither"
                )
            moments = float(values.mean()), float(values.std())
        return law_edges(self.edges, *moments, self.bins)

    def _premises(self, obs: Observation) -> tuple[Problem, str, ImprintBlock]:
        found = find_block(obs.model)
        if found is None:
            raise ValueError(f"{WHO}: the observed model must have an imprint block, got one without")
        path, block = found
        missing = [name for name in (f"{path}.rows.weight", f"{path}.rows.bias") if name not in obs.update]
        if missing:
            raise ValueError(f"{WHO}: the update must have the block's rows; {', '.join(missing)} missing")
        problem = as_problem(dataclasses.replace(obs, local_steps=None), who=WHO)
        return problem, path, block


imprint = Imprint


def _planted(model: nn.Module, settings: dict[str, object]) -> nn.Module:
    return add_imprint(copy.deepcopy(model), **settings)  # type: ignore[arg-type]
