"""Train some coordinates and leave all others where they are (Kerkouche et al., UAI 2021, Algorithm 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from fl_app.coordinates import mask_coordinates
from fl_app.selection import keep_only
from fl_app.training.local_data import Batch
from fl_app.training.rules import Differentiate, Loss, Rules, Step, backpropagate
from fl_app.types import Update


def train_only(masks: Mapping[str, Tensor], differentiate: Differentiate = backpropagate) -> Differentiate:
    """Return gradients that are exactly 0 outside ``masks``.

    With a gradient of 0, plain SGD and SGD with momentum leave a weight as it is,
    bit for bit; the paper moves it and puts it back after each step. Weight decay
    would move it: train without.
    """

    def at_masks(model: nn.Module, batch: Batch, loss: Loss, step: Step) -> tuple[float, Update]:
        value, gradient = differentiate(model, batch, loss, step)
        return value, {name: keep_only(g, masks[name]) for name, g in gradient.items()}

    return at_masks


def confine(rules: Rules, coordinates: Tensor | None, like: Mapping[str, Tensor]) -> Rules:
    """Return rules under which only ``coordinates`` of the tensors ``like`` move; None: all."""
    if coordinates is None:
        return rules
    masks = mask_coordinates(coordinates, like)
    return replace(rules, differentiate=train_only(masks, rules.differentiate))
