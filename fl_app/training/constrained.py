"""Training of chosen coordinates with all others frozen (Kerkouche et al., UAI 2021, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from fl_app.sketches import check_coordinates, split_coordinates
from fl_app.training.local_data import Batch
from fl_app.training.rules import Loss, Rules, Step
from fl_app.types import Update


def confine(rules: Rules, coordinates: Tensor | None, like: Mapping[str, Tensor]) -> Rules:
    """Return rules under which only ``coordinates`` of the tensors ``like`` move; None: all.

    Gradients are exactly 0 elsewhere. With a gradient of 0, plain SGD and SGD with momentum leave a
    weight as it is, bit for bit; the paper moves it and puts it back after each step. Weight
    decay would move it: train without.

    Every step reuses the same gradient tensors and writes only a few entries: clearing whole
    tensors, or masking the dense gradient, took a fifth of a client's time.
    """
    if coordinates is None:
        return rules
    check_coordinates("confine", coordinates, sum(tensor.numel() for tensor in like.values()))
    places = split_coordinates(coordinates, like)
    confined = {name: torch.zeros_like(tensor.detach()) for name, tensor in like.items()}
    differentiate = rules.differentiate

    def at_coordinates(model: nn.Module, batch: Batch, loss: Loss, step: Step) -> tuple[float, Update]:
        value, gradient = differentiate(model, batch, loss, step)
        for name, place in places.items():
            confined[name].view(-1)[place] = gradient[name].reshape(-1)[place]
        return value, dict(confined)

    return replace(rules, differentiate=at_coordinates, trained=coordinates)
