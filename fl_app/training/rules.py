"""Rules of one training step: preparation of the batch, loss, and differentiation.

Defenses hook in here; the trainers only iterate over the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.training.local_data import Augment, Batch
from fl_app.types import Update

Loss = Callable[[nn.Module, Batch], Tensor]
"""Computes the mean loss of a batch, with its graph."""


@dataclass(frozen=True)
class Step:
    """Properties of one step's batch."""

    generator: torch.Generator
    expected: float
    """Requested batch size; the mean size of a Poisson draw."""
    rate: float
    """Share of the client's samples in a regular batch."""
    per_round: int
    """Number of steps in a regular round."""


Differentiate = Callable[[nn.Module, Batch, Loss, Step], tuple[float, Update]]
"""Computes the loss of a batch and a gradient for every trained parameter."""


def parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters by name, in the model's order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def state_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that belong to the model's state, by name; one that it makes anew stays at home."""
    kept = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in kept}


def tied(model: nn.Module) -> dict[str, str]:
    """Return the further names that a state dict has for one tensor, with the name that travels."""
    named = [*model.named_parameters(), *model.named_buffers()]
    first = {id(tensor): name for name, tensor in named}
    state = model.state_dict(keep_vars=True)
    return {name: first[id(tensor)] for name, tensor in state.items() if first.get(id(tensor), name) != name}


def cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """Return the mean cross-entropy over all labels of the batch."""
    return F.cross_entropy(*batch.predict(model, batch.inputs, batch.labels))


def backpropagate(model: nn.Module, batch: Batch, loss: Loss, step: Step) -> tuple[float, Update]:
    """Return the loss and its plain gradient."""
    weights = parameters(model)
    value = loss(model, batch)
    grads = torch.autograd.grad(value, list(weights.values()), materialize_grads=True)
    return float(value.detach()), dict(zip(weights, grads, strict=True))


@dataclass(frozen=True)
class Rules:
    """Rules of a training step. The defaults are those of an undefended client."""

    augment: Augment | None = None
    loss: Loss = cross_entropy
    differentiate: Differentiate = backpropagate
    poisson: bool = False
    """Whether each sample enters a batch by an independent draw, as privacy accounting assumes."""
    rate: float | None = None
    """Probability of these draws; None: the batch size over the client's number of samples."""
    trained: Tensor | None = field(default=None, compare=False)
    """The only coordinates that move; None: all."""
