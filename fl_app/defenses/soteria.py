"""Soteria (Sun et al., CVPR 2021): withhold the gradient of the features that an attacker would miss most.

The layer after a representation ``r`` has one column of weights per feature, and the
gradient of that column shows how strong the feature was. To first order, it takes an input
that is off by ``r_f / ‖∂r_f/∂x‖`` to lack feature ``f``: columns where that is large are withheld.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.defenses.defense import Defense
from fl_app.models.layers import linear_layer, watched
from fl_app.models.settings import check_count
from fl_app.sketches.selection import floor_count, keep_only, largest
from fl_app.training import Batch, Loss, Rules, Step, backpropagate, parameters
from fl_app.transforms.settings import check_rate
from fl_app.types import Update

logger = logging.getLogger(__name__)

OFFSET = 0.1
"""Added to a feature's magnitude before dividing its sensitivity by it."""

SLACK = 1 + 1e-4
"""Factor by which a partial score must exceed another to count as higher; rounding stays far below."""

_KEEPS_ZERO = frozenset(
    {
        "AdaptiveAvgPool2DBackward0",
        "AvgPool2DBackward0",
        "MaxPool2DWithIndicesBackward0",
        "MeanBackward1",
        "UnsafeViewBackward0",
        "ViewBackward0",
    }
)
"""Operations that map ReLU outputs to 0 only where all of their inputs are 0."""


def soteria(rate: float = 0.01, layer: str | None = None, chunk: int = 512) -> Defense:
    """Zero the ``floor(rate * F)`` columns of one layer's weight gradient with the lowest scores.

    The score of feature ``f`` of ``r``, the layer's input, is the sum over the batch of
    ``‖∂r_f/∂x‖₂ / (|r_f| + 0.1)``; of equals the lower index is kept. The paper has no
    magnitude, and needs none behind a ReLU; where a feature may be negative (tanh, GELU), its
    divisor could be 0 or turn the order round.

    ``layer`` names the linear layer; None takes the model's last one. A plain gradient is
    one backward pass; this takes up to one more per feature, and far fewer at a low rate. They run
    together in groups of up to ``chunk`` input gradients of one sample, which limits memory only.

    A feature that no sample activates scores 0 and goes first, though its column is 0
    anyway; where more than ``rate`` are so, nothing else is withheld. With BatchNorm in train
    mode samples depend on each other, and ``∂r_f/∂x`` is then what a sample's input does to
    the feature's sum over the batch. Weight decay in local training moves all columns.
    """
    check_rate("soteria", "rate", rate)
    check_count("soteria", "chunk", chunk)

    def differentiate(model: nn.Module, batch: Batch, loss: Loss, step: Step) -> tuple[float, Update]:
        weight, linear = _layer(model, layer)
        withheld = floor_count(rate, linear.in_features)
        if withheld == 0:
            return backpropagate(model, batch, loss, step)
        scores: list[Tensor] = []

        def scored(model: nn.Module, batch: Batch) -> Tensor:
            with watched(linear) as calls:
                value = loss(model, batch)
            # here, while the graph of this forward pass still exists
            r = _representation([call.input for call in calls])
            scores.append(_scores(r, batch.inputs, withheld, chunk))
            return value

        inputs = batch.inputs.detach().requires_grad_(True)
        value, update = backpropagate(model, replace(batch, inputs=inputs), scored, step)
        kept = largest(scores[0], linear.in_features - withheld)
        return value, update | {weight: keep_only(update[weight], kept)}

    def check(model: nn.Module) -> None:
        _layer(model, layer)

    return Defense(rules=Rules(differentiate=differentiate), check=check, images_only=True)


def _layer(model: nn.Module, name: str | None) -> tuple[str, nn.Linear]:
    """Return the name of the layer's weight in an update, and the layer."""
    path, linear = linear_layer(model, name, who="soteria")
    weight = f"{path}.weight" if path else "weight"
    if weight not in parameters(model):
        raise ValueError(f"soteria: {weight} must be trained, but it is frozen or part of another layer")
    return weight, linear


def _representation(inputs: list[Tensor]) -> Tensor:
    if len(inputs) != 1 or inputs[0].ndim != 2:
        shapes = [tuple(r.shape) for r in inputs]
        raise ValueError(f"soteria: the layer must see one vector a sample, once; got {shapes}")
    return inputs[0]


def _scores(r: Tensor, inputs: Tensor, lowest: int, chunk: int) -> Tensor:
    """Return one score per feature; infinity for features that are surely not among the ``lowest``.

    A score is a sum over the batch of non-negative terms. So a feature is dropped as soon as a
    part of its sum exceeds ``lowest`` complete scores, which saves the passes for its other terms.
    """
    weights = 1 / (r.detach().abs() + OFFSET)
    apart, alive = _independent(r, inputs), _alive(r)
    if not apart:
        alive = alive.any(dim=0).expand_as(r)
    terms, known = torch.zeros_like(weights), ~alive
    # first complete the scores that would be lowest if all slopes were equal
    guess = weights.masked_fill(known, 0.0).sum(dim=0)
    wanted = ~known & (guess <= guess.kthvalue(lowest).values)
    sought, share, at_once = ~known, 1, max(1, chunk // len(r))
    while True:
        passes = _pack(wanted, sought) if apart else torch.nonzero(wanted.any(dim=0)).expand(-1, len(r))
        for start in range(0, len(passes), at_once):
            features = passes[start : start + at_once]
            slopes = _slopes(r, inputs, features)
            terms.scatter_(1, features.T, slopes.T * weights.gather(1, features.T))
            known.scatter_(1, features.T, True)
        sums = terms.sum(dim=0)
        scores = sums.masked_fill(~known.all(dim=0), torch.inf)
        # the slack covers rounding; the form of the test keeps NaN, which the ranking then reports
        sought = ~known & ~(sums > scores.kthvalue(lowest).values * SLACK)
        if not sought.any():
            return scores
        # a few more terms of each, likely large ones first: most rule a feature out at once
        samples = weights.masked_fill(~sought, 0.0).topk(min(share, len(r)), dim=0).indices
        wanted, share = torch.zeros_like(sought).scatter_(0, samples, True) & sought, 2 * share


def _independent(r: Tensor, inputs: Tensor) -> bool:
    """Return whether the even samples' representations ignore the odd samples, as without BatchNorm."""
    (slopes,) = torch.autograd.grad(r[::2].sum(), inputs, retain_graph=True)
    return not slopes[1::2].any()


def _alive(r: Tensor) -> Tensor:
    """Return a mask of the features that may have a slope: behind a ReLU, those that are not 0."""
    node = r.grad_fn
    while node is not None and node.name() in _KEEPS_ZERO:
        node = node.next_functions[0][0]
    if node is not None and node.name() == "ReluBackward0":
        return r.detach() != 0
    return torch.ones_like(r, dtype=torch.bool)


def _pack(wanted: Tensor, sought: Tensor) -> Tensor:
    """Return the feature that each backward pass (row) differentiates in each sample (column).

    Samples are independent, so each can have its own features. A sample with fewer features
    than others continues with those that may be needed later.
    """
    order = torch.argsort(wanted.int() + sought.int(), dim=1, descending=True, stable=True)
    return order[:, : int(wanted.sum(dim=1).max())].T


def _slopes(r: Tensor, inputs: Tensor, features: Tensor) -> Tensor:
    """Return the norm of the gradient that each pass (row) finds in each sample (column)."""
    seeds = F.one_hot(features, r.shape[1]).to(r.dtype)
    try:
        (found,) = torch.autograd.grad(r, inputs, seeds, retain_graph=True, is_grads_batched=True)
    except RuntimeError as error:
        # an operator without a batching rule, or too little memory for all at once
        logger.debug("soteria: one pass at a time: %s", error)
        found = torch.stack([torch.autograd.grad(r, inputs, seed, retain_graph=True)[0] for seed in seeds])
    slopes: Tensor = torch.linalg.vector_norm(found.flatten(2), dim=2)
    return slopes
