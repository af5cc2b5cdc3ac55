"""An update with the pruned entries of its linear layers filled in.

The rank of ``[dW | db] = sum_s delta_s [x_s | 1]^T`` of a linear layer is at most the number of
samples before pruning, and the bias is one more column of the same matrix.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from attacks.analytic.completion import Completion, CompletionError, complete_matrix
from attacks.base import StepListener
from attacks.knowledge import travelled
from fl_app.types import Observation, Update

LOOSE = 0.05
"""Largest misfit of the survivors at which a layer counts as low-rank; others are left unchanged."""


class LinearLayer(NamedTuple):
    """The names of a linear layer's parameters."""

    weight: str
    bias: str | None


class CompletedUpdate(NamedTuple):
    """An update with the pruned entries of its linear layers filled in."""

    update: Update
    sent: dict[str, Tensor]
    """Mask of known entries, sent or completed."""
    notes: tuple[str, ...]


def complete_layer(
    obs: Observation,
    layer: LinearLayer,
    rank: int,
    *,
    starts: int = 3,
    iterations: int = 300,
    seed: int = 0,
    on_step: StepListener | None = None,
) -> Completion:
    """Complete ``[dW | db]`` of one layer; raise `CompletionError` with the reason if it fails."""
    entries, known = _joined(obs, layer)
    return complete_matrix(
        entries, known, rank, starts=starts, iterations=iterations, seed=seed, on_step=on_step
    )


def complete_update(
    obs: Observation, *, rank: int | None = None, starts: int = 3, iterations: int = 300, seed: int = 0
) -> CompletedUpdate:
    """Return the update after completing every linear layer that its survivors determine.

    ``rank`` None takes the number of samples times the number of local steps: a deeper layer's
    inputs change with every step.
    """
    bound = rank or _samples(obs) * (obs.local_steps or 1)
    update, notes = dict(obs.update), []
    sent = {name: travelled(obs, name) for name in update}
    for layer in _linear_layers(obs):
        _, known = _joined(obs, layer)
        if known.all():
            continue
        try:
            completed = complete_layer(obs, layer, bound, starts=starts, iterations=iterations, seed=seed)
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


def _samples(obs: Observation) -> int:
    return obs.batch_size or (len(obs.labels) if obs.labels is not None else 1)


def _joined(obs: Observation, layer: LinearLayer) -> tuple[Tensor, Tensor]:
    """Return ``[dW | db]`` and the mask of its known entries."""
    names = [name for name in layer if name is not None]
    entries = [obs.update[name].detach() for name in names]
    known = [travelled(obs, name) for name in names]
    return _side_by_side(entries), _side_by_side(known)


def _side_by_side(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.view(len(part), -1) for part in parts], dim=1)


def _linear_layers(obs: Observation) -> list[LinearLayer]:
    layers = []
    for path, module in obs.model.named_modules():
        weight, bias = (f"{path}.{name}".lstrip(".") for name in ("weight", "bias"))
        if isinstance(module, nn.Linear) and weight in obs.update:
            layers.append(LinearLayer(weight, bias if bias in obs.update else None))
    return layers


def _parts(layer: LinearLayer, update: Update) -> list[tuple[str, slice]]:
    """Return the columns of each tensor in the joined matrix."""
    width = update[layer.weight].shape[1]
    parts = [(layer.weight, slice(0, width))]
    return parts if layer.bias is None else [*parts, (layer.bias, slice(width, None))]
