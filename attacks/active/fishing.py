"""Fishing (Wen et al., ICML 2022): single out the samples of one class by a changed output layer.

The server zeroes all rows of the output layer but the target's and gives the other classes the same large
bias. The loss of a sample of another class then no longer depends on its features, so that it sends nothing
back into the network; a sample of the target class sends back the target's row. The gradient of all layers
below is that of the target's samples alone, however large the batch is, and the gradient of the bias counts
the samples of every class. If the target has one sample, a batch of any size is attacked as a batch of one.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.analytic.first_linear import refusal
from attacks.base import Reconstruction, StepListener
from attacks.optimisation.inverting_gradients import InvertingGradients
from attacks.optimisation.problem import as_problem
from fl_app.types import Manipulated, Observation, Trace

FAR = 50.0
"""Lead of the other classes' bias over the target's logit: beyond it, their softmax is 1 in any precision."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fishing(InvertingGradients):
    """Plant an output layer that only samples of class ``target`` feel, and invert what they send.

    The last linear layer must have a bias and be the output; the update must be a gradient, or that of a
    single local step, because the model leaves the planted state with the second.
    """

    target: int = 0

    who: ClassVar[str] = "fishing"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target < 0:
            raise ValueError(f"{self.who}: target must be a class, 0 or more, got {self.target}")

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
        """Return the model with a planted output layer, built like the honest one."""
        return Manipulated(self.plant(model), {})

    def plant(self, model: nn.Module) -> nn.Module:
        """Return a copy of ``model`` whose output layer feels the target's samples alone."""
        planted = copy.deepcopy(model)
        layer = planted.get_submodule(_output(planted, self.who))
        if not isinstance(layer, nn.Linear) or self.target >= layer.out_features:
            raise ValueError(f"{self.who}: target {self.target} is no class of the output layer {layer}")
        with torch.no_grad():
            row = layer.weight[self.target].clone()
            layer.weight.zero_()
            layer.weight[self.target] = row
            layer.bias.fill_(FAR)
            layer.bias[self.target] = 0
        return planted

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack the update of a client that trained the planted model."""
        problem = as_problem(dataclasses.replace(obs, local_steps=None), who=self.who)
        output = _output(obs.model, self.who)
        bias = obs.update.get(f"{output}.bias")
        if bias is None:
            return refusal(problem, f"update of {output}.bias, which counts the samples, was not sent")
        if obs.local_steps not in (None, 1):
            return refusal(problem, f"{obs.local_steps} local steps: only the first is on the planted model")
        # mean(p - y): p is even over the other classes and zero for the target
        gradient = bias.detach().double() / (1.0 if obs.local_steps is None else -(obs.lr or 1.0))
        even = torch.full_like(gradient, 1 / (len(gradient) - 1))
        even[self.target] = 0
        share = even - gradient
        own = share[self.target] * problem.batch_size
        # samples of the target spread their softmax evenly as well: all shares are exact
        counts = (share * problem.batch_size).round().long().clamp_min(0)
        if float((share * problem.batch_size - counts).abs().max()) > 0.1 or int(counts.sum()) == 0:
            return refusal(
                problem, "shares of the classes are no counts: defended, or not on the planted model"
            )
        number = int(own.round())
        found = ", ".join(f"{int(n)} of class {c}" for c, n in enumerate(counts) if n)
        note = f"samples counted by the planted bias: {found}"
        if number == 0:
            return refusal(problem, f"{note}; none of the target")
        names = [name for name in obs.update if not name.startswith(f"{output}.")]
        alone = dataclasses.replace(
            obs,
            update={name: obs.update[name] for name in names},
            sent=None if obs.sent is None else {name: obs.sent[name] for name in names if name in obs.sent},
            batch_size=number,
            labels=torch.full((number,), self.target),
        )
        result = super().__call__(alone, on_step=on_step)
        return dataclasses.replace(result, notes=(*result.notes, note))


fishing = Fishing


def _output(model: nn.Module, who: str) -> str:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not names or model.get_submodule(names[-1]).bias is None:
        raise ValueError(f"{who}: expected a linear output layer with bias, got none")
    output: str = names[-1]
    return output
