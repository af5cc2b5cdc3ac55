"""An attack of one's own: the gradient of a linear layer divided by that of its bias is its input."""

from __future__ import annotations

import torch
from torch import nn

from attacks.base import Attack, Reconstruction, StepListener
from fl_app.types import Observation


def divide_rows(least: float = 1e-12) -> Attack:
    """Recover one image from the row of the first linear layer whose bias moved most.

    Of a single sample ``x``, row ``i`` of the weight's gradient is ``b_i x``, and ``b_i`` is the gradient
    of the bias. A bias gradient below ``least`` says nothing.
    """

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        if obs.input_shape is None or obs.mean is None or obs.std is None:
            raise ValueError("divide_rows: must know the shape, mean and deviation of the inputs")
        name = next(name for name, layer in obs.model.named_modules() if isinstance(layer, nn.Linear))
        weight, bias = obs.update[f"{name}.weight"], obs.update[f"{name}.bias"]
        row = int(bias.abs().argmax())
        notes = [] if float(bias[row].abs()) > least else ["no bias moved: there is nothing to divide by"]
        pixels = (weight[row] / bias[row]).view(1, *obs.input_shape).nan_to_num()
        mean, std = (torch.tensor(values).to(pixels).view(1, -1, 1, 1) for values in (obs.mean, obs.std))
        return Reconstruction(images=(pixels * std + mean).clamp(0, 1), labels=obs.labels, notes=notes)

    return attack
