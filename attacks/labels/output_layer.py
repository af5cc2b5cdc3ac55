"""Gradient of a model's output layer, found by name and corrected for the update's sign."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fl_app.types import Observation


class OutputGradient(NamedTuple):
    """One row per class, in torch's (out, in) layout."""

    name: str
    rows: Tensor
    notes: list[str]
    """Parts that are missing from the gradient."""


def output_gradient(obs: Observation, weight: str | None = None, *, who: str) -> OutputGradient:
    """Return the gradient of the output layer's weight, up to a positive factor.

    ``weight`` names the parameter; without it, the last matrix of the model with
    ``obs.num_classes`` rows (or the last matrix, if that number is not granted).
    A FedAvg delta points against the gradient, so its sign is turned.
    """
    name = weight if weight is not None else _last_matrix(obs, who)
    if name not in obs.update:
        raise ValueError(f"{who}: weight must be one of {sorted(_matrices(obs))}, got {name!r}")
    if obs.update[name].ndim != 2:
        raise ValueError(
            f"{who}: {name} must be a matrix (classes, features), got {obs.update[name].ndim} axes"
        )
    rows = obs.update[name].detach()
    return OutputGradient(name, rows if obs.local_steps is None else -rows, _missing(obs, name))


def bias_gradient(obs: Observation, weight: str) -> Tensor | None:
    """Return the gradient of the output layer's bias, up to a positive factor, if it has one."""
    entries = obs.update.get(f"{weight.removesuffix('weight')}bias")
    if not weight.endswith("weight") or entries is None or entries.ndim != 1:
        return None
    return entries.detach() if obs.local_steps is None else -entries.detach()


def whole_bias(obs: Observation, weight: str) -> Tensor | None:
    """Return `bias_gradient` if all of it was sent."""
    bias = bias_gradient(obs, weight)
    return bias if bias is not None and bias.all() else None


def _matrices(obs: Observation) -> dict[str, int]:
    parameters = obs.model.named_parameters()
    return {name: p.shape[0] for name, p in parameters if p.ndim == 2 and name in obs.update}


def _last_matrix(obs: Observation, who: str) -> str:
    matrices = _matrices(obs)
    fitting = [name for name, rows in matrices.items() if obs.num_classes in (None, rows)]
    if not fitting:
        raise ValueError(
            f"{who}: no matrix in the update has num_classes={obs.num_classes} rows, "
            f"got {matrices or 'no matrix at all'}; name the output layer with weight="
        )
    return fitting[-1]


def _missing(obs: Observation, name: str) -> list[str]:
    entries = obs.update[name]
    if obs.sent is not None and name in obs.sent:
        held_back = ~obs.sent[name].to(entries.device)
    else:
        # a feature that no sample activates leaves a whole column of zeros; a single zero was pruned
        held_back = (entries == 0) & (entries != 0).any(dim=0, keepdim=True)
    number = int(held_back.sum())
    if not torch.any(entries != 0):
        return [f"nothing of {name} was sent: the labels are a guess"]
    return [f"{number} of {entries.numel()} entries of {name} were not sent"] if number else []
