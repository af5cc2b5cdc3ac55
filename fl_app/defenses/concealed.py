"""Concealed samples (Wu et al., AAAI 2024): images unlike the client's own with like gradients."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fl_app.defenses.defense import Defense
from fl_app.models.settings import check_count
from fl_app.privacy.draws import normal
from fl_app.training import Batch, Loss, Rules, Step, backpropagate, parameters
from fl_app.transforms.settings import check_bound, check_rate
from fl_app.types import Trace, Update


def concealed(steps: int = 20, lr: float = 0.1, away: float = 1.0, share: float = 0.7) -> Defense:
    """Mix the loss of each batch with that of concealed images, which weigh ``share``.

    A concealed image starts as noise. In ``steps`` of signed Adam its gradient is turned towards the batch's
    own, while it stays at least ``away`` (root mean square, in the model's inputs) from the image that it
    stands for. The paper also projects the mixed gradient; a common direction is what the search is for.
    """
    check_count("concealed", "steps", steps)
    check_bound("concealed", "lr", lr)
    check_bound("concealed", "away", away)
    check_rate("concealed", "share", share)

    def differentiate(model: nn.Module, batch: Batch, loss: Loss, step: Step) -> tuple[float, Update]:
        value, own = backpropagate(model, batch, loss, step)
        if share == 0:
            return value, own
        hidden = _search(model, batch, loss, own, step.generator)
        _, theirs = backpropagate(model, replace(batch, inputs=hidden), loss, step)
        return value, {name: (1 - share) * g + share * theirs[name] for name, g in own.items()}

    def _search(model: nn.Module, batch: Batch, loss: Loss, own: Update, draws: torch.Generator) -> Tensor:
        weights = list(parameters(model).values())
        target = torch.cat([g.reshape(-1) for g in own.values()])
        inputs = normal(batch.inputs, draws)
        mean, square = torch.zeros_like(inputs), torch.zeros_like(inputs)
        for done in range(steps):
            inputs = inputs.detach().requires_grad_()
            value = loss(model, replace(batch, inputs=inputs))
            found = torch.autograd.grad(value, weights, create_graph=True, materialize_grads=True)
            flat = torch.cat([g.reshape(-1) for g in found])
            unlike = 1 - flat @ target / (flat.norm() * target.norm()).clamp_min(1e-12)
            apart = (inputs - batch.inputs).flatten(1).square().mean(dim=1).clamp_min(1e-12).sqrt()
            objective = unlike + (away - apart).clamp_min(0).sum()
            (slope,) = torch.autograd.grad(objective, inputs)
            slope = slope.sign()
            mean = 0.9 * mean + 0.1 * slope
            square = 0.999 * square + 0.001 * slope.square()
            size = lr * (1 - done / steps) / (1 - 0.9 ** (done + 1))
            spread = (square / (1 - 0.999 ** (done + 1))).sqrt() + 1e-8
            inputs = inputs.detach() - size * mean / spread
        return inputs.detach()

    return Defense(
        rules=Rules(differentiate=differentiate),
        images_only=True,
        trained=(Trace(zeros_sent=True, remark="concealed images are mixed into the gradient"),),
    )
