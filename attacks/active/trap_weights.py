"""Trap weights (Boenisch et al., EuroS&P 2023, "When the curious abandon honesty").

Half of each row's weights are negative, and the positive half is smaller, so few inputs in
[0, 1] activate a row. If a single sample does, the row's gradient is that sample times the
gradient of the bias; other rows hold mixtures.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from attacks.active.passage import LinearCall, first_linear_call, pass_pixels
from attacks.active.pruned_rows import is_pruned
from attacks.active.pruned_traps import read_pruned_rows
from attacks.active.traps import Rows, read_rows
from attacks.analytic.first_linear import refusal
from attacks.base import Reconstruction, StepListener
from attacks.optimisation.problem import Problem, as_problem
from fl_app.types import Manipulated, Observation, Trace

WHO = "trap_weights"


@dataclasses.dataclass(frozen=True)
class TrapWeights:
    """Plant rows that few samples activate, and read images off the update of a client trained with them.

    ``scale`` is the size of the positive half relative to the negative one: the smaller, the
    fewer samples activate a row. The layer must see the flattened image, or see it through
    convolutions that can pass it on: stride 1, padded to keep its size, at least as many channels.
    With ``adaptive`` the rows of a pruned update are merged where they agree; without, entries
    that were not sent count as zero.
    """

    scale: float = 0.97
    seed: int = 0
    adaptive: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.scale <= 1:
            raise ValueError(f"{WHO}: scale must be in (0, 1], got {self.scale}")

    def plant(
        self,
        model: nn.Module,
        in_shape: Sequence[int],
        *,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> nn.Module:
        """Return a copy of ``model`` with traps in its first linear layer.

        The model sees ``(pixel - mean) / std``, or pixels if these are None. Weights and
        bias undo that, so that the rows act on pixels.
        """
        channels = in_shape[0]
        shift, scale = mean or [0.0] * channels, std or [1.0] * channels
        planted = copy.deepcopy(model)
        behind_convolutions = pass_pixels(planted, in_shape, shift, scale, who=WHO)
        call = first_linear_call(planted, in_shape, shift, scale, who=WHO)
        layer = cast(nn.Linear, planted.get_submodule(call.name))
        if layer.bias is None:
            raise ValueError(f"{WHO}: {call.name} must have a bias, got a layer without")
        features = torch.Size(in_shape).numel()
        traps = trap_rows(layer.out_features, features, self.scale, self.seed)
        offsets = torch.zeros(layer.out_features, dtype=torch.float64)
        if not behind_convolutions:
            offsets = traps @ _per_feature(shift, in_shape)
            traps = traps * _per_feature(scale, in_shape)
        # as large as the layer's own weights, so that only the signs are unusual
        size = float(layer.weight.detach().double().std() / traps.std())
        with torch.no_grad():
            layer.weight.zero_()
            layer.weight[:, :features] = (size * traps).to(layer.weight)
            layer.bias.copy_(size * offsets)
        return planted

    def manipulate(
        self,
        model: nn.Module,
        *,
        in_shape: Sequence[int],
        public: Tensor,
        mean: Sequence[float],
        std: Sequence[float],
        deltas: bool,
        defense: Sequence[Trace] | None = None,
    ) -> Manipulated:
        """Return the planted model, built like the honest one, without settings of its own."""
        return Manipulated(self.plant(model, in_shape, mean=mean, std=std), {})

    def read(self, obs: Observation) -> Rows:
        """Read every row of an update computed on the planted model."""
        problem, call = _premises(obs)
        features = torch.Size(problem.input_shape).numel()
        if not (self.adaptive and is_pruned(obs, call.name, features)):
            return read_rows(obs, problem, call)
        found = read_pruned_rows(obs, problem, call)
        if call.sees_pixels:  # a black pixel also has a zero gradient: perhaps nothing was withheld
            whole = read_rows(obs, problem, call)
            if int((whole.labels >= 0).sum()) >= len(found.pixels):
                return whole
        return found

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update."""
        problem, call = _premises(obs)
        if not obs.update[f"{call.name}.weight"].any():
            return refusal(problem, f"nothing of {call.name}.weight was sent, or no sample activates a row")
        found = self.read(obs)
        labels = found.labels if len(found.labels) and (found.labels >= 0).all() else None
        images = found.pixels.view(-1, *problem.input_shape).clamp(0, 1).to(problem.target.dtype)
        return Reconstruction(images=images, labels=labels, notes=(*problem.notes, *found.notes))


trap_weights = TrapWeights


def trap_rows(rows: int, features: int, scale: float, seed: int) -> Tensor:
    """Return weights (rows, features) in float64: half of each row negative, the same sizes in the other."""
    generator = torch.Generator().manual_seed(seed)
    half = features // 2
    sizes = torch.randn(rows, half, generator=generator, dtype=torch.float64).abs()
    order = torch.rand(rows, features, generator=generator).argsort(dim=1)
    traps = torch.zeros(rows, features, dtype=torch.float64)
    traps.scatter_(1, order[:, :half], -sizes)
    return traps.scatter_(1, order[:, half : 2 * half], scale * sizes)


def _per_feature(values: Sequence[float], in_shape: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).repeat_interleave(in_shape[1] * in_shape[2])


def _premises(obs: Observation) -> tuple[Problem, LinearCall]:
    problem = as_problem(dataclasses.replace(obs, local_steps=None), who=WHO)
    mean, std = problem.mean.flatten().tolist(), problem.std.flatten().tolist()
    call = first_linear_call(problem.model, problem.input_shape, mean, std, who=WHO)
    missing = [name for name in (f"{call.name}.weight", f"{call.name}.bias") if name not in obs.update]
    if missing:
        raise ValueError(f"{WHO}: the update must have the first linear layer; {', '.join(missing)} missing")
    return problem, call
