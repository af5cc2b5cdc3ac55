"""CENSOR (Zhang et al., NDSS 2025): a random direction orthogonal to the gradient, the best of several."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fl_app.defenses.defense import Defense
from fl_app.models.settings import check_count
from fl_app.privacy.draws import normal
from fl_app.training import Batch, Loss, Rules, Step, backpropagate, parameters
from fl_app.transforms.settings import check_bound
from fl_app.types import Trace, Update


def censor(trials: int = 10, probe: float = 0.1) -> Defense:
    """Send, of ``trials`` random directions orthogonal to each layer's gradient, the one that helps most.

    A direction has the length of the gradient in every layer. The one with the lowest loss after a step of
    ``probe`` against it is sent: the paper's sampling at temperature 0. An orthogonal step changes the loss
    to second order only, so training depends on the choice among the trials.
    """
    check_count("censor", "trials", trials)
    check_bound("censor", "probe", probe)

    def differentiate(model: nn.Module, batch: Batch, loss: Loss, step: Step) -> tuple[float, Update]:
        value, gradient = backpropagate(model, batch, loss, step)
        best, lowest = gradient, float("inf")
        for _ in range(trials):
            tried = {name: _orthogonal(g, step.generator) for name, g in gradient.items()}
            after = _loss_after(model, batch, loss, tried, probe)
            if after < lowest or lowest == float("inf"):
                best, lowest = tried, after
        return value, best

    return Defense(
        rules=Rules(differentiate=differentiate),
        trained=(Trace(zeros_sent=True, remark="the update is orthogonal to the gradient in every layer"),),
    )


def _orthogonal(gradient: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random tensor of the gradient's length, orthogonal to it; of one entry, zeros."""
    flat = gradient.reshape(-1)
    square = flat.square().sum()
    drawn = normal(flat, generator)
    if square > 0:
        drawn = drawn - flat * (drawn @ flat / square)
    length = drawn.norm()
    if gradient.numel() < 2 or length == 0:
        return torch.zeros_like(gradient)
    scaled: Tensor = drawn * (square.sqrt() / length)
    return scaled.view(gradient.shape)


def _loss_after(model: nn.Module, batch: Batch, loss: Loss, direction: Update, probe: float) -> float:
    weights = parameters(model)
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.sub_(direction[name], alpha=probe)
        try:
            return float(loss(model, batch))
        finally:
            for name, tensor in weights.items():
                tensor.add_(direction[name], alpha=probe)
