"""SPEAR (Dimitrov et al., NeurIPS 2024): exact inputs of a batch from a linear layer in front of a ReLU.

The gradient of the layer's weight, ``dW = L R``, has the batch size as its rank. A ReLU leaves each sample's
error signal at zero in about half of the rows, so that of all vectors in the span of ``L`` the sparsest are
the samples' own; they are found by drawing rows, as `attacks.analytic.first_linear` does, and the bias gives
their sizes. Unlike `first_linear`, which returns the likeliest images in any case, this attack returns
inputs only if they explain the whole gradient, and refuses otherwise.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.analytic.first_linear import (
    as_images,
    labels_of,
    layer_gradients,
    refusal,
    scale_free_problem,
    separate,
)
from attacks.base import Reconstruction, StepListener
from fl_app.types import Observation

WHO = "spear"
RANK_FLOOR = 1e-6
"""Singular values below this part of the largest are rounding of float32."""
EXPLAINED = 1e-4
"""Largest part of the gradient that the recovered inputs may leave unexplained."""
ZERO = 1e-4
"""An error signal below this part of the largest of its sample is zero."""


@dataclasses.dataclass(frozen=True)
class Spear:
    """Recover all inputs of a batch, or say why that is impossible.

    Premises, each checked: a linear layer with bias sees the flattened input, its gradient has as many
    dimensions as samples, some rows are inactive for each sample, and both the gradient of the weight and
    the signs of the layer's outputs follow from what was found.
    """

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update; a failed premise gives no images, and a note."""
        problem = scale_free_problem(obs, who=WHO)
        found = layer_gradients(problem, obs)
        if found is None:
            return refusal(problem, "expected a linear layer with bias that sees the input, got none")
        layer, weight, bias = found
        count = problem.batch_size
        rank = _rank(weight)
        if rank != count:
            return refusal(
                problem,
                f"expected a gradient of rank {count}, one for each sample, got rank {rank}: "
                "the update is defended, rows are missing, or samples are alike",
            )
        joined = torch.cat([weight, bias[:, None]], dim=1)
        directions = separate(joined, count)
        if directions is None or len(directions) != count:
            return refusal(
                problem,
                f"found no {count} samples that leave rows inactive; expected a ReLU behind the layer, "
                "and many more rows than samples",
            )
        sizes = directions[:, -1:]
        if bool((sizes.abs() < RANK_FLOOR * directions.norm(dim=1, keepdim=True)).any()):
            return refusal(problem, "a sample's error signal sums to zero in the bias, its size is open")
        module = problem.model.get_submodule(layer.weight.removesuffix("weight").removesuffix("."))
        own = [parameter.detach().double() for parameter in module.parameters()]
        inputs = _polished(joined, F.linear(directions[:, :-1] / sizes, *own) < 0, directions)
        signals = torch.linalg.lstsq(inputs.t(), weight.t()).solution
        unexplained = float((signals.t() @ inputs - weight).norm() / weight.norm())
        if unexplained > EXPLAINED:
            return refusal(problem, f"the inputs found leave {unexplained:.1e} of the gradient unexplained")
        outputs = F.linear(inputs, *own)
        active = signals.abs() > ZERO * signals.abs().amax(dim=1, keepdim=True)
        broken = int((active & (outputs < -ZERO * outputs.abs().amax())).sum())
        if broken:
            return refusal(problem, f"{broken} rows are active where the layer's output is below 0: no ReLU")
        labels, about = labels_of(obs, problem, count, who=WHO)
        note = f"{count} samples explain the gradient up to {unexplained:.1e}"
        return Reconstruction(
            images=as_images(inputs, problem), labels=labels, notes=(*problem.notes, *about, note)
        )


def _polished(joined: Tensor, inactive: Tensor, directions: Tensor) -> Tensor:
    """Return the inputs (K, features), solved again with all rows that they themselves leave inactive.

    The rows that `separate` took for inactive may include some whose signal is merely small.
    """
    left, values, right = torch.linalg.svd(joined, full_matrices=False)
    count = len(directions)
    left, right = left[:, :count], values[:count, None] * right[:count]
    normals = []
    for rows in inactive:
        _, sizes, vectors = torch.linalg.svd(left[rows], full_matrices=True)
        if len(sizes) < count - 1 or (count > 1 and sizes[count - 2] < RANK_FLOOR):
            return directions[:, :-1] / directions[:, -1:]
        normals.append(vectors[-1])
    found: Tensor = torch.linalg.solve(torch.stack(normals).t(), right)
    return found[:, :-1] / found[:, -1:]


def _rank(weight: Tensor) -> int:
    values = torch.linalg.svdvals(weight)
    return int((values > RANK_FLOOR * values[0]).sum()) if values[0] > 0 else 0


spear = Spear
