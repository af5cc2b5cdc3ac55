"""Two tests, without the truth, that tell a single sample from a mixture.

*Replay*: the model is known, so the error signal of a recovered input can be computed for
every label. For a single sample and its label it equals the observed one; for a mixture it
does not. *Grid*: a photograph has 256 levels, and a mixture falls between them.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.optimisation.problem import Problem
from fl_app.types import Observation

LEVELS = 255
ON_GRID = 0.05
"""Root mean square distance to the nearest level, in levels; that of arbitrary numbers is 0.29."""
NEAR_GRID = 0.2
"""Largest distance for a replayed candidate, if others of the batch are on the grid."""
REPLAYED = {torch.float64: 1e-10, torch.float32: 3e-6}
"""Relative distance of the error signals, where the rest of the update does not drown the sample's."""
MOST_TOLERANT = 1e-3
SAME = 1e-3
"""Root mean square pixel distance below which two images count as the same."""


class Verdicts(NamedTuple):
    """Verdicts of the tests on the candidates (N,)."""

    single: Tensor
    labels: Tensor
    """Labels found by replay, -1 where unknown."""
    decided: bool
    """Whether candidates that are not single are known to be mixtures."""
    notes: list[str]


def judge(
    obs: Observation,
    problem: Problem,
    *,
    layer: str,
    inputs: Tensor,
    pixels: Tensor,
    rows: Tensor,
    signals: Tensor,
    noise: Tensor,
) -> Verdicts:
    """Test candidates that were read off the named layer.

    ``inputs`` (N, features) are as the model sees them, flattened; ``pixels`` the same in
    [0, 1]. The ``signals`` (N,) are the entries of the bias gradient at ``rows`` that a
    single sample would have made; ``noise`` (N,) is how much larger than a signal the
    numbers are that it was computed from.
    """
    distance = grid_distance(pixels)
    on_grid = distance < ON_GRID
    labels = torch.full((len(inputs),), -1, device=inputs.device)
    hurdle = _why_not_replayed(obs)
    if hurdle is not None:
        notes = [f"not replayed: {hurdle}"]
        if len(inputs) and not on_grid.any():
            notes.append("no candidate keeps to 256 levels: whether one is a mixture is not known")
        return Verdicts(on_grid, labels, bool(on_grid.any()), notes)
    factor = problem.batch_size / (1.0 if obs.local_steps is None else -float(obs.lr or 1.0))
    predicted = error_signals(problem.model, layer, inputs.view(-1, *problem.input_shape), rows)
    observed = factor * signals[:, None]
    misfit, best = ((predicted - observed).abs() / observed.abs()).min(dim=1)
    strictness = REPLAYED.get(obs.update[f"{layer}.bias"].dtype, MOST_TOLERANT)
    replayed = misfit < (strictness * noise.clamp_min(1)).clamp_max(MOST_TOLERANT)
    if 2 * int((replayed & on_grid).sum()) > int(replayed.sum()):
        # the grid test is stronger: among many mixtures, one matches some label's signal by chance
        replayed = replayed & (distance < NEAR_GRID)
    single = replayed | on_grid
    notes = [f"{int(replayed.sum())} replayed exactly with a label, {int(on_grid.sum())} keep to 256 levels"]
    return Verdicts(single, torch.where(replayed, best, labels), bool(single.any()), notes)


def grid_distance(pixels: Tensor) -> Tensor:
    """Return how far (N,) images (N, features) are from 256 levels, in levels, in the root mean square."""
    levels = LEVELS * pixels.double()
    return (levels - levels.round()).square().mean(dim=1).sqrt()


def distinct(pixels: Tensor) -> Tensor:
    """Return the indices of images (N, features) that no earlier one equals."""
    kept: list[int] = []
    for i, image in enumerate(pixels):
        apart = (pixels[kept] - image).square().mean(dim=1).sqrt()
        if not (apart < SAME).any():
            kept.append(i)
    return torch.tensor(kept, dtype=torch.long, device=pixels.device)


def error_signals(model: nn.Module, layer: str, inputs: Tensor, rows: Tensor) -> Tensor:
    """Return the bias gradient (N, classes) at one row per input, for every label it could have."""
    # in float64, so that only the client's rounding enters the comparison
    model = copy.deepcopy(model).double()
    outputs: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_hook(lambda _, args, output: outputs.append(output))
    try:
        logits = model(inputs.double())
    finally:
        handle.remove()
    each = torch.arange(len(inputs), device=inputs.device)
    found = []
    for label in range(logits.shape[1]):
        loss = F.cross_entropy(logits, torch.full_like(each, label), reduction="sum")
        (signal,) = torch.autograd.grad(loss, outputs[0], retain_graph=True)
        found.append(signal[each, rows])
    return torch.stack(found, dim=1)


def _why_not_replayed(obs: Observation) -> str | None:
    if obs.batch_size is None and obs.labels is None:
        return "the batch size is not granted"
    if obs.local_steps is not None and (obs.local_steps > 1 or obs.lr is None):
        return f"{obs.local_steps} local steps with {'no' if obs.lr is None else 'a'} known learning rate"
    if obs.training:
        for path, module in obs.model.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.modules.dropout._DropoutNd):
                return f"{path}, in train mode, makes a sample's signal depend on more than the sample"
    return None
