"""Completion of pruned updates: the first linear layer's gradient has low rank, so survivors fix the rest."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from attacks.analytic.completed_update import complete_layer, complete_update
from attacks.analytic.completion import CompletionError
from attacks.analytic.first_linear import (
    as_images,
    first_linear,
    input_layer,
    labels_of,
    read_samples,
    refusal,
    scale_free_problem,
    valid_range,
)
from attacks.base import Reconstruction, StepListener
from attacks.optimisation.problem import Problem
from fl_app.types import Observation

WHO = "complete_low_rank"


@dataclasses.dataclass(frozen=True)
class CompleteLowRank:
    """Complete the first linear layer's gradient from its survivors, then read the inputs off it.

    ``rank`` None takes the number of samples. Up to ``starts`` starts of at most
    ``iterations`` alternating least-squares steps. Without ``adaptive`` the attacker does
    not know of pruning: entries that were not sent count as zero, as in `first_linear`.
    """

    rank: int | None = None
    starts: int = 3
    iterations: int = 300
    adaptive: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"{WHO}: rank must be at least 1 or None, got {self.rank}")
        for name, number in (("starts", self.starts), ("iterations", self.iterations)):
            if number < 1:
                raise ValueError(f"{WHO}: {name} must be at least 1, got {number}")

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update."""
        if not self.adaptive:
            return first_linear()(obs, on_step=on_step)
        problem = scale_free_problem(obs, who=WHO)
        layer = input_layer(problem)
        if layer is None:
            return refusal(problem, "no linear layer in the update sees the flattened input itself")
        rank = self.rank or problem.batch_size
        try:
            completed = complete_layer(
                obs,
                layer,
                rank,
                starts=self.starts,
                iterations=self.iterations,
                seed=self.seed,
                on_step=on_step,
            )
        except CompletionError as error:
            return refusal(problem, f"{layer.weight}: {error}")
        weight, bias = completed.matrix.to(problem.device), None
        if layer.bias is not None:
            weight, bias = weight[:, :-1], weight[:, -1] if completed.columns[-1] else None
        notes = [f"adaptive: {layer.weight} completed to rank {rank}", *completed.notes]
        missing = ~completed.columns[: weight.shape[1]].to(weight.device)
        if rank == 1 and bias is not None and missing.any():
            middle = _middle_of_the_possible(obs.update[layer.weight], bias, problem)
            weight = torch.where(missing, bias[:, None] * middle, weight)
            notes.append("inputs of such columns: the middle of what is too small to be sent")
        samples = read_samples(weight, bias, rank, problem)
        labels, about_labels = labels_of(self._for_labels(obs), problem, len(samples.inputs), who=WHO)
        return Reconstruction(
            images=as_images(samples.inputs, problem),
            labels=labels,
            objective=completed.error,
            notes=(*problem.notes, *about_labels, *notes, *samples.notes),
        )

    def _for_labels(self, obs: Observation) -> Observation:
        """Return the observation, with the output layer completed if the label must be inferred."""
        if obs.labels is not None or obs.batch_size not in (None, 1):
            return obs
        whole = complete_update(obs, starts=self.starts, iterations=self.iterations, seed=self.seed)
        return dataclasses.replace(obs, update=whole.update, sent=whole.sent)


complete_low_rank = CompleteLowRank


def _middle_of_the_possible(weight: Tensor, bias: Tensor, problem: Problem) -> Tensor:
    """Return the likeliest input (features,) of a column without sent entries.

    Pruning by magnitude withheld even its product with the largest error signal, so the
    input is smaller than the smallest survivor over that signal, and a valid pixel.
    """
    sizes = weight.detach().abs().double()
    bound = float(sizes[sizes > 0].min() / bias.abs().max().to(sizes.device))
    low, high = valid_range(problem)
    return (low.clamp(-bound, bound) + high.clamp(-bound, bound)) / 2
