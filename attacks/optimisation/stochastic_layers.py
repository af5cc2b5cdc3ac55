"""Models that draw at random (PRECODE): the client's draws are searched for with its images.

The gradient of every layer depends on them, so that a guess with draws of its own never
matches. But they are few, and the layers in front of them tell of the images whatever
was drawn; those behind see little but the draws, and would outvote the others.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.optimisation.client_gradient import Loss
from attacks.optimisation.problem import Problem
from fl_app.types import Observation

BUFFER = "given_draws"
"""Attribute of a stochastic layer that, if set, replaces its draws."""


def stochastic_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that can be given their draws, by path; each has an encoder to means and spreads."""
    return {path: module for path, module in model.named_modules() if hasattr(module, BUFFER)}


def give_draws(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Give the model's stochastic layers zeros for draws; return the shapes of what is to be found.

    The keys are the names of the buffers that hold them.
    """
    shapes = {}
    for path, layer in stochastic_layers(problem.model).items():
        shape = cast(tuple[int, ...], layer.draws_shape(problem.batch_size))  # type: ignore[operator]
        setattr(layer, BUFFER, problem.target.new_zeros(shape))
        shapes[f"{path}.{BUFFER}".lstrip(".")] = shape
    return shapes


def in_front(problem: Problem) -> Tensor:
    """Return which entries of the target belong to layers in front of the first draw (n,)."""
    path = next(iter(stochastic_layers(problem.model)))
    encoder = f"{path}.encoder.".lstrip(".")
    last = max((i for i, name in enumerate(problem.names) if name.startswith(encoder)), default=-1)
    parts = [problem.sent.new_full((size,), number <= last) for number, size in enumerate(problem.sizes)]
    return torch.cat(parts)


def loss_of(obs: Observation, problem: Problem) -> Loss:
    """Return the client's loss: the cross-entropy, plus the divergence term of PRECODE."""
    beta = sum(trace.divergence for trace in obs.defense or ())
    encoded: dict[str, Tensor] = {}

    def remember(path: str, module: nn.Module, inputs: object, output: Tensor) -> None:
        encoded[path] = output

    for path, layer in stochastic_layers(problem.model).items():
        cast(nn.Module, layer.encoder).register_forward_hook(partial(remember, path))

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        divergence = torch.stack([_divergence(numbers) for numbers in encoded.values()]).sum()
        return F.cross_entropy(outputs, labels) + beta * divergence

    return loss


def _divergence(encoded: Tensor) -> Tensor:
    """Return the mean KL divergence from N(0, 1) of Gaussians whose means and spreads are side by side."""
    mean, spread = encoded.chunk(2, dim=-1)
    std = F.softplus(spread)
    # far below zero softplus is 0 in single precision, whose logarithm has no gradient
    log_std = std.clamp_min(torch.finfo(std.dtype).tiny).log()
    return 0.5 * (mean.square() + std.square() - 1 - 2 * log_std).sum(dim=-1).mean()
