"""Two scores of a policy that need no training with it (Gao et al., CVPR 2021).

Both use a model in its current mode and take inputs as the model does. Both assume
that images do not influence each other, as in eval mode.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fl_app.training import class_logits, parameters

BLENDS = 20
"""Steps from noise to image."""
EPSILON = 1e-5
_GRADIENT_ENTRIES = 2**26
"""Maximum number of gradient entries held at once."""


def privacy_score(model: nn.Module, inputs: Tensor, labels: Tensor, noise: Tensor) -> float:
    """Return S_pri of transformed images, the ease of recovering them from a gradient; lower is more private.

    An attacker who starts from ``noise`` and moves straight to the image sees the
    cosine between the gradients of the two rise to 1. The score is the area under
    that curve (trapezoids), averaged over layers and images.
    """
    weights = {name: p.detach() for name, p in parameters(model).items()}
    shares = torch.linspace(0, 1, BLENDS + 1, dtype=inputs.dtype, device=inputs.device)

    def loss(weights: dict[str, Tensor], x: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(model, weights, (x.unsqueeze(0),))
        return F.cross_entropy(class_logits(outputs), label.unsqueeze(0))

    def curve(x: Tensor, label: Tensor, start: Tensor) -> Tensor:
        blends = start + shares.view(-1, 1, 1, 1) * (x - start)
        gradients = vmap(grad(loss), in_dims=(None, 0, None))(weights, blends, label)
        # the last blend is the image itself
        cosines = [F.cosine_similarity(g.flatten(1), g[-1:].flatten(1)) for g in gradients.values()]
        return torch.stack(cosines).mean(dim=0)

    entries = len(shares) * sum(p.numel() for p in weights.values())
    curves = vmap(curve, chunk_size=max(1, _GRADIENT_ENTRIES // entries))(inputs, labels, noise)
    return torch.trapezoid(curves, shares).mean().item()


def accuracy_score(model: nn.Module, inputs: Tensor) -> float:
    """Return S_acc of transformed images on an untrained model; higher trains better.

    The less the input Jacobians (of the summed outputs) of different images
    correlate, the easier the model tells them apart (Mellor et al., ICML 2021).
    The optimum is ``-len(inputs)``, for uncorrelated images.
    """
    x = inputs.detach().requires_grad_()
    (jacobians,) = torch.autograd.grad(model(x).sum(), x)
    correlation = torch.corrcoef(jacobians.flatten(1).double())
    if not torch.isfinite(correlation).all():
        return -math.inf  # the model cannot tell apart an image to which it does not react
    v = torch.linalg.eigvalsh(correlation) + EPSILON
    return -float((v.log() + 1 / v).sum())
