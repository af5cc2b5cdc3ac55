"""Imprint block of Robbing the Fed (Fowl et al., ICLR 2022), placed in front of a model.

Every row measures the same linear functional of the image; the biases put each row's
threshold at a different edge. A row is active for the samples above its edge. All rows have
equal outgoing weights, so a sample has the same error signal in all rows that it activates:
neighbouring rows differ only by the samples between their edges.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

WHO = "add_imprint"
MODE = 32
"""Half-waves of the cosine along the flattened image: brightness cancels, coarse structure counts."""
GAIN, GAIN_OF_GRADIENTS = 16.0, 2.0**20
"""Inverse of the deviation of the rows' measurements; the way back compensates for it.

Deltas of one step are read completely with 16 and more; of several, fewer with 64, whose edges move far."""


class ImprintBlock(nn.Module):
    """From an image to one number per bin, and back to an image of a single grey."""

    def __init__(
        self,
        in_shape: Sequence[int],
        functional: str,
        edges: Sequence[float],
        floor: float,
        seed: int = 0,
        gain: float = GAIN,
    ) -> None:
        super().__init__()
        features, bins = math.prod(in_shape), len(edges) + 1
        # skip_init draws nothing, so the rest of the model is the same as without the block
        self.rows = nn.utils.skip_init(nn.Linear, features, bins)
        self.back = nn.utils.skip_init(nn.Linear, bins, features)
        thresholds = torch.tensor([floor, *edges], dtype=torch.float64)
        heights = (thresholds[1:, None] - thresholds).relu().sum(dim=1)
        # the grey of a typical sample is about N(0, 1), as a normalised picture is
        spread = float(heights.std()) if bins > 2 else float(heights.mean())
        width = float(thresholds[1:].std()) if bins > 2 else float(thresholds[1] - thresholds[0])
        # a power of two: numbers keep their digits, and a gradient is the same but for its scale
        scale = 2.0 ** -round(math.log2(gain * width))
        with torch.no_grad():
            self.rows.weight.copy_(scale * functional_weights(functional, in_shape, seed).expand(bins, -1))
            self.rows.bias.copy_(-scale * thresholds)
            self.back.weight.fill_(1 / (scale * spread))
            self.back.bias.fill_(-float(heights.mean()) / spread)

    def forward(self, x: Tensor) -> Tensor:
        """Pass the sum of the active rows on as an image of one grey."""
        grey: Tensor = self.back(self.rows(x.flatten(1)).relu())
        return grey.view_as(x)


def add_imprint(
    model: nn.Module,
    /,
    in_shape: Sequence[int],
    functional: str,
    edges: Sequence[float],
    floor: float,
    seed: int = 0,
    gain: float = GAIN,
) -> nn.Module:
    """Put an imprint block in front of ``model``; the settings are plain data, as an order may carry them.

    ``edges`` are the inner ones in ascending order, one fewer than there are bins. The
    lowest bin begins at ``floor``, below everything that an image can measure. A larger
    ``gain`` makes the rows' gradient larger and the rows smaller; the function is the same.
    """
    _check(in_shape, edges, floor, gain)
    block = ImprintBlock(in_shape, functional, edges, floor, seed, gain)
    like = next((parameter for parameter in model.parameters() if parameter.is_floating_point()), None)
    if like is not None:
        block = block.to(like)
    return nn.Sequential(OrderedDict(imprint=block, model=model)).train(model.training)


def functional_weights(name: str, in_shape: Sequence[int], seed: int = 0) -> Tensor:
    """Return the functional of that name over a flattened image (features,), in float64 and of length 1."""
    if name not in _FUNCTIONALS:
        raise ValueError(f"imprint: functional must be one of {', '.join(_FUNCTIONALS)}; got {name!r}")
    weights = _FUNCTIONALS[name](math.prod(in_shape), seed)
    length: Tensor = weights.norm()
    return weights / length


def check_gain(gain: float) -> None:
    """Refuse a gain that is not a positive number."""
    if not (math.isfinite(gain) and gain > 0):
        raise ValueError(f"imprint: gain must be above 0, got {gain}")


def find_block(model: nn.Module) -> tuple[str, ImprintBlock] | None:
    """Return the imprint block in a model and its name, None without one."""
    return next(((path, m) for path, m in model.named_modules() if isinstance(m, ImprintBlock)), None)


def _check(in_shape: Sequence[int], edges: Sequence[float], floor: float, gain: float) -> None:
    check_gain(gain)
    if len(in_shape) != 3 or min(in_shape) < 1:
        raise ValueError(f"{WHO}: in_shape must be three positive integers (C, H, W), got {in_shape!r}")
    if not edges:
        raise ValueError(f"{WHO}: edges must have at least one inner edge, got none")
    steps = torch.tensor([floor, *edges], dtype=torch.float64).diff()
    if not (steps > 0).all():
        raise ValueError(
            f"{WHO}: edges must ascend from above the floor {floor}; {int((steps <= 0).sum())} do not"
        )


def _mean(features: int, seed: int) -> Tensor:
    return torch.ones(features, dtype=torch.float64)


def _mode(features: int, seed: int) -> Tensor:
    places = torch.arange(features, dtype=torch.float64) + 0.5
    return torch.cos(torch.pi * MODE * places / features)


def _random(features: int, seed: int) -> Tensor:
    return torch.randn(features, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


_FUNCTIONALS: Mapping[str, Callable[[int, int], Tensor]] = {"mean": _mean, "mode32": _mode, "random": _random}
