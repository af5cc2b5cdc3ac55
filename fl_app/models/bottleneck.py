"""A variational bottleneck in front of a model's last layer (PRECODE: Scheliga et al., WACV 2022).

Its output is drawn at random, so that the gradients of all layers belong to draws that no one else can
repeat.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.models.layers import linear_layer
from fl_app.models.settings import check_count


class Bottleneck(nn.Module):
    """A linear encoder to mean and spread, a draw from that Gaussian, a linear decoder back.

    It draws wherever gradients are recorded, in train and eval mode alike: a client
    that computes in eval mode must be protected too. Without gradients, as the
    server evaluates, the mean passes instead. Draws come from torch's global generator,
    unless ``given_draws`` holds them, as an attack that searches for a client's draws may set.
    """

    def __init__(self, features: int, size: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, 2 * size)
        self.decoder = nn.Linear(size, features)
        self.given_draws: Tensor | None
        self.register_buffer("given_draws", None, persistent=False)

    def draws_shape(self, samples: int) -> tuple[int, ...]:
        """Return the shape of the draws for this many samples."""
        return samples, self.decoder.in_features

    def forward(self, x: Tensor) -> Tensor:
        """Pass a draw, or the mean where no gradient is recorded."""
        mean, std = moments(self.encoder(x))
        passed = mean
        if torch.is_grad_enabled():
            noise = self.given_draws
            if noise is None:
                # on the CPU: the same draw on every device
                noise = torch.randn(std.shape, dtype=std.dtype, device="cpu").to(std.device)
            passed = mean + std * noise
        decoded: Tensor = self.decoder(passed)
        return decoded


def add_bottleneck(model: nn.Module, /, size: int) -> nn.Module:
    """Put a bottleneck of ``size`` before the last linear layer of ``model``, which is changed in place.

    The old layer follows the bottleneck, so its weight and bias stay the model's last parameters.
    """
    check_count("bottleneck", "size", size)
    path, linear = linear_layer(model, who="bottleneck")
    bottleneck = Bottleneck(linear.in_features, size).to(linear.weight)
    extended = nn.Sequential(OrderedDict(bottleneck=bottleneck, linear=linear))
    if not path:  # the model is that layer
        return extended
    model.set_submodule(path, extended)
    return model


def moments(encoded: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation from an encoder's output."""
    mean, spread = encoded.chunk(2, dim=-1)
    return mean, F.softplus(spread)


def divergence(encoded: Tensor) -> Tensor:
    """Return the KL divergence of the encoded Gaussians from N(0, 1), in the mean over the batch."""
    mean, std = moments(encoded)
    # softplus reaches 0 below about -100 in float32, and the logarithm of 0 has no gradient
    log_std = std.clamp_min(torch.finfo(std.dtype).tiny).log()
    return -0.5 * (1 + 2 * log_std - mean.square() - std.square()).sum(dim=-1).mean()
