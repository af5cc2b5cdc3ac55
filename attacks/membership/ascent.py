"""Gradient ascent on the candidates before a client trains (Nasr et al. 2019).

The server sends a model that is bad at the candidates. A client that has one of them pushes back hard, so
that its gradient stands out of the update; the others' updates hold nothing of the kind.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.types import Manipulated

STEPS = 5


def ascended(model: nn.Module, inputs: Tensor, labels: Tensor, *, distance: float) -> Manipulated:
    """Return a copy of ``model`` moved by ``distance``, relative to its norm, up the candidates' loss."""
    moved = copy.deepcopy(model).eval()
    weights = [p for p in moved.parameters() if p.requires_grad]
    length = distance * float(torch.cat([p.detach().flatten() for p in weights]).norm()) / STEPS
    for _ in range(STEPS):
        outputs = moved(inputs)
        outputs = F.pad(outputs, (1, 0)) if outputs.shape[1] == 1 else outputs
        gradients = torch.autograd.grad(F.cross_entropy(outputs, labels.to(outputs.device)), weights)
        norm = torch.cat([g.flatten() for g in gradients]).norm().clamp_min(1e-30)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.add_(length / norm * gradient)
    return Manipulated(moved.train(model.training), {})
