"""Pruning undone: the gradient of a linear layer has low rank, so its survivors determine the rest.

``[dW | db] = sum_s delta_s [x_s | 1]^T`` has at most one rank per sample, whatever was pruned
from it, and the bias is one more column of the same matrix.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attacks.analytic.completion import Completion, CompletionError, complete_matrix
from attacks.analytic.first_linear import (
    InputLayer,
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
from fl_app.types import Observation, Update

WHO = "complete_low_rank"
LOOSE = 0.05
"""A layer whose survivors miss every matrix of the rank by more is not of that rank: it is left as it is."""


class CompletedUpdate(NamedTuple):
    """An update with the pruned entries of its linear layers filled in."""

    update: Update
    sent: dict[str, Tensor]
    """Which entries are known now: those that travelled and those that were completed."""
    notes: tuple[str, ...]


def complete_low_rank(
    rank: int | None = None, starts: int = 3, iterations: int = 300, adaptive: bool = True, seed: int = 0
) -> CompleteLowRank:
    """Complete the first linear layer's gradient from its survivors, then read the inputs off it.

    ``rank`` None takes the number of samples. Up to ``starts`` starts of at most
    ``iterations`` alternating least-squares steps. Without ``adaptive`` the attacker does
    not know of pruning: what was not sent counts as zero, as in `first_linear`.
    """
    if rank is not None and rank < 1:
        raise ValueError(f"{WHO}: rank must be at least 1 or None, got {rank}")
    for name, number in (("starts", starts), ("iterations", iterations)):
        if number < 1:
            raise ValueError(f"{WHO}: {name} must be at least 1, got {number}")
    return CompleteLowRank(rank, starts, iterations, adaptive, seed)


@dataclasses.dataclass(frozen=True)
class CompleteLowRank:
    """The attack with its settings; `complete_low_rank` makes and checks it."""

    rank: int | None
    starts: int
    iterations: int
    adaptive: bool
    seed: int

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
            completed = self._complete(obs, layer, rank, on_step)
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

    def _complete(
        self, obs: Observation, layer: InputLayer, rank: int, on_step: StepListener | None = None
    ) -> Completion:
        entries, known = _joined(obs, layer)
        return complete_matrix(
            entries,
            known,
            rank,
            starts=self.starts,
            iterations=self.iterations,
            seed=self.seed,
            on_step=on_step,
        )

    def _for_labels(self, obs: Observation) -> Observation:
        """Return the observation with the output layer completed, if the label is to be inferred."""
        if obs.labels is not None or obs.batch_size not in (None, 1):
            return obs
        whole = complete_update(obs, starts=self.starts, iterations=self.iterations, seed=self.seed)
        return dataclasses.replace(obs, update=whole.update, sent=whole.sent)


def _middle_of_the_possible(weight: Tensor, bias: Tensor, problem: Problem) -> Tensor:
    """Return the likeliest input (features,) of a column of which nothing was sent.

    Pruning by magnitude withheld even its product with the largest error signal, so the
    input is smaller than the smallest survivor over that signal, and a valid pixel.
    """
    sizes = weight.detach().abs().double()
    bound = float(sizes[sizes > 0].min() / bias.abs().max().to(sizes.device))
    low, high = valid_range(problem)
    return (low.clamp(-bound, bound) + high.clamp(-bound, bound)) / 2


def complete_update(
    obs: Observation, *, rank: int | None = None, starts: int = 3, iterations: int = 300, seed: int = 0
) -> CompletedUpdate:
    """Return the update with every linear layer completed that its survivors determine.

    ``rank`` None takes the number of samples times that of local steps: the activations
    that a deeper layer sees change with every step.
    """
    attack = complete_low_rank(rank, starts, iterations, seed=seed)
    problem = scale_free_problem(obs, who="complete_update")
    bound = rank or problem.batch_size * (obs.local_steps or 1)
    update, notes = dict(obs.update), []
    sent = {name: _known(obs, name) for name in update}
    for layer in _linear_layers(obs):
        _, known = _joined(obs, layer)
        if known.all():
            continue
        try:
            completed = attack._complete(obs, layer, bound)
        except CompletionError as error:
            notes.append(f"{layer.weight} left as it is: {error}")
            continue
        if completed.error > LOOSE:
            notes.append(f"{layer.weight} left as it is: not of rank {bound}, misfit {completed.error:.2g}")
            continue
        notes += [f"{layer.weight} completed to rank {bound}", *completed.notes]
        certain = completed.rows[:, None] & completed.columns
        for name, columns in _parts(layer, update):
            known_now, matrix = certain[:, columns], completed.matrix[:, columns]
            filled = matrix.reshape(update[name].shape).to(update[name])
            update[name] = torch.where(sent[name], update[name], filled)
            sent[name] = sent[name] | known_now.reshape(sent[name].shape)
    return CompletedUpdate(update, sent, tuple(notes))


def _joined(obs: Observation, layer: InputLayer) -> tuple[Tensor, Tensor]:
    """Return ``[dW | db]`` and which of its entries are known."""
    names = [name for name in layer if name is not None]
    entries = [obs.update[name].detach() for name in names]
    known = [_known(obs, name) for name in names]
    return _side_by_side(entries), _side_by_side(known)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.view(len(part), -1) for part in parts], dim=1)


def _known(obs: Observation, name: str) -> Tensor:
    entries = obs.update[name]
    # without masks, a zero is what a pruned entry looks like
    mask = (obs.sent or {}).get(name, entries != 0)
    return mask.bool().to(entries.device)


def _linear_layers(obs: Observation) -> list[InputLayer]:
    layers = []
    for path, module in obs.model.named_modules():
        weight, bias = (f"{path}.{name}".lstrip(".") for name in ("weight", "bias"))
        if isinstance(module, nn.Linear) and weight in obs.update:
            layers.append(InputLayer(weight, bias if bias in obs.update else None))
    return layers


def _parts(layer: InputLayer, update: Update) -> list[tuple[str, slice]]:
    """Return which columns of the joined matrix belong to which tensor."""
    width = update[layer.weight].shape[1]
    parts = [(layer.weight, slice(0, width))]
    return parts if layer.bias is None else [*parts, (layer.bias, slice(width, None))]
