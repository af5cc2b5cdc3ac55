"""Updates that an attacker computes of images of its own, as the client does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.optimisation.client_gradient import client_gradient
from attacks.optimisation.local_training import plan_local_training
from attacks.optimisation.problem import Problem
from fl_app.types import Observation, Update

AT_ONCE = 64
"""Gradients that are computed in one graph."""


def own_updates(
    obs: Observation, problem: Problem, batches: Sequence[tuple[Tensor, Tensor]], *, who: str
) -> list[Update]:
    """Return what the client would send for each of ``batches``: pixels (B, C, H, W) and labels (B,).

    If the client's whole work is known as code (`Observation.rehearse`), that does it. Else the gradient, or
    the change by the client's local steps, goes through its defense, if that is known.
    """
    if obs.rehearse is not None:
        return [obs.rehearse(pixels, labels) for pixels, labels in batches]
    local = None if obs.local_steps is None else plan_local_training(obs, problem.batch_size, who=who)[0]
    inputs = torch.stack([problem.to_inputs(pixels.to(problem.target)) for pixels, _ in batches])
    labels = torch.stack([one for _, one in batches]).to(problem.device)
    gradient, _ = client_gradient(problem.model, problem.names, inputs, labels, course=local)
    updates: list[Update] = []
    for some, own in zip(inputs.split(AT_ONCE), labels.split(AT_ONCE), strict=True):
        for flat in gradient(some, own, {}).detach():
            parts = (flat if local is None else local.scale * flat).split(problem.sizes)
            update = {n: p.view_as(obs.update[n]) for n, p in zip(problem.names, parts, strict=True)}
            updates.append(update if obs.defend is None else obs.defend(update))
    return updates
