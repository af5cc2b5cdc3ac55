"""Detection of a manipulated model by the client, before training on it.

Each check is a number per layer with a threshold above the values of honest models, trained or
not. Checks of the weights identify known attacks. Checks of behaviour, on the client's own data,
also detect disguised weights: rows can only sort samples into bins if they rise and fall
together. Checks count rows instead of shares: a few bad rows among many honest ones are
enough for an attack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WHO = "inspect_model"
ROWS, COLUMNS = 8, 16
"""Smaller layers are not judged, because their rows are parallel by chance."""
MOST_ROWS = 2048
"""Number of rows inspected in larger layers, evenly spread."""
SKETCH = 64
"""Number of random projections for comparing rows: parallel rows have parallel projections."""
SILENT = 0.05
"""A unit active on a smaller share of the inputs counts as silent."""
PARALLEL_ROWS, PARALLEL_COLUMNS, IN_STEP = 0.98, 0.999, 0.99
"""Cosines above which rows, columns, and units over the inputs count as the same.

An attack can disguise its rows, but hardly its columns: samples must have the same error
signal in all of its units. Training on one or two classes also makes honest columns alike.
"""


class Check(NamedTuple):
    """A threshold on one number of a layer, and the meaning of exceeding it."""

    threshold: float
    meaning: str


CHECKS: Mapping[str, Check] = {
    "parallel rows": Check(5.0, "so many rows are copies of one, up to scale"),
    "parallel columns": Check(5.0, "so many units lead on by copies of the same weights, up to scale"),
    "rank one": Check(0.95, "this share of the weights' energy is in a single direction"),
    "lone weights": Check(0.25, "this share of the rows have at most one weight: they pass inputs on"),
    "even signs": Check(0.1, "the rows' negative weights vary by so much less than tosses, beyond chance"),
    "even sums": Check(
        0.1, "the rows' sums vary by so much less than those of random weights, beyond chance"
    ),
    "far biases": Check(2.0, "a bias is this many times as large as its row's weights together"),
    "image-wide layer": Check(0.5, "a linear layer as wide as the image, beside convolutions"),
    "silent units": Check(0.8, "this share of the units are active on less than 1 in 20 inputs"),
    "units in step": Check(0.95, "the units' mean correlation over the inputs"),
    "group in step": Check(32.0, "so many units rise and fall with one over the inputs"),
    "other architecture": Check(0.5, "this many parameters are not those of the expected model"),
}
"""Threshold of each number by its name; larger numbers are findings."""


class Finding(NamedTuple):
    """A number that honest models rarely have."""

    layer: str
    check: str
    """One of `CHECKS`."""
    value: float

    def __str__(self) -> str:
        check = CHECKS[self.check]
        return f"{self.layer}: {self.check}, {self.value:.3g} > {check.threshold:g} ({check.meaning})"


def inspect_model(
    model: nn.Module,
    *,
    inputs: Tensor | None = None,
    in_shape: Sequence[int] | None = None,
    expected: nn.Module | None = None,
) -> tuple[Finding, ...]:
    """Return the suspicious findings on a model; empty if it looks honest.

    ``inputs`` (N, C, H, W) are at least 32 of the client's own, as the model sees them. Without
    them, `smooth_noise` of shape ``in_shape`` replaces them; without either, only the weights
    are checked. ``expected`` is the agreed architecture, with any weights.
    """
    return tuple(
        found
        for found in measure_layers(model, inputs=inputs, in_shape=in_shape, expected=expected)
        if found.value > CHECKS[found.check].threshold
    )


def measure_layers(
    model: nn.Module,
    *,
    inputs: Tensor | None = None,
    in_shape: Sequence[int] | None = None,
    expected: nn.Module | None = None,
) -> list[Finding]:
    """Return the number of every check on every layer, regardless of the threshold."""
    if inputs is not None and (inputs.ndim < 2 or len(inputs) < 2):
        raise ValueError(f"{WHO}: inputs must be a batch of two or more, got {tuple(inputs.shape)}")
    if inputs is None and in_shape is not None:
        inputs = smooth_noise(64, in_shape)
    shape = tuple(inputs.shape[1:]) if inputs is not None else None
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    }
    found = []
    for name, layer in layers.items():
        rows = layer.weight.detach().flatten(1)
        if rows.shape[1] >= COLUMNS:
            found.append(Finding(name, "parallel rows", _largest_group(rows, PARALLEL_ROWS)))
        if rows.shape[0] >= ROWS and isinstance(layer, nn.Linear):
            found.append(Finding(name, "parallel columns", _parallel_columns(rows)))
        if rows.shape[0] >= ROWS and rows.shape[1] >= COLUMNS:
            rows = rows.double()
            found += [Finding(name, check, number(layer, rows)) for check, number in _OF_WEIGHTS.items()]
    if shape is not None:
        found += _image_wide(layers, math.prod(shape))
    if inputs is not None:
        found += _behaviour(model, layers, inputs)
    if expected is not None:
        found.append(Finding("model", "other architecture", _other_parameters(model, expected)))
    return found


def smooth_noise(count: int, in_shape: Sequence[int]) -> Tensor:
    """Return Gaussian inputs of deviation 1, the same each time.

    Amplitudes of images (C, H, W) fall with the frequency, as those of photographs do: rows
    that differ only where photographs have nothing are still in step over them.
    """
    generator = torch.Generator(device="cpu").manual_seed(0)
    noise = torch.randn((count, *in_shape), generator=generator, device="cpu")
    if len(in_shape) < 3:
        return noise
    height, width = in_shape[-2:]
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width))
    spectrum = torch.fft.rfft2(noise) / frequency.clamp_min(1 / max(height, width))
    smooth: Tensor = torch.fft.irfft2(spectrum, s=(height, width))
    return smooth / smooth.std()


def _parallel_columns(rows: Tensor) -> float:
    # a constant added to all logits does not change a softmax: columns could hide in it
    both = (rows.t(), (rows - rows.mean(dim=0)).t())
    return max(_largest_group(columns, PARALLEL_COLUMNS) for columns in both)


def _largest_group(rows: Tensor, cosine: float) -> float:
    """Return the size of the largest group of rows parallel to one of them; zero rows do not count."""
    rows = _some(rows).float()
    if rows.shape[1] > SKETCH:
        generator = torch.Generator(device="cpu").manual_seed(0)
        rows = rows @ torch.randn(rows.shape[1], SKETCH, generator=generator, device="cpu").to(rows)
    lengths = rows.norm(dim=1, keepdim=True)
    unit = (rows / lengths)[lengths.flatten() > 0]
    if not len(unit):
        return 0.0
    return float(max(((part @ unit.t()).abs() > cosine).sum(dim=1).max() for part in unit.split(1024)))


def _some(rows: Tensor) -> Tensor:
    return rows[:: max(1, -(-len(rows) // MOST_ROWS))]


def _rank_one(layer: nn.Module, rows: Tensor) -> float:
    generator = torch.Generator(device="cpu").manual_seed(0)
    direction = torch.randn(rows.shape[1], generator=generator, dtype=torch.float64, device="cpu").to(
        rows.device
    )
    for _ in range(10):  # power iteration: a direction with most of the energy is found at once
        direction = rows.t() @ (rows @ direction)
        direction = direction / direction.norm().clamp_min(1e-300)
    return float((rows @ direction).square().sum() / rows.square().sum().clamp_min(1e-300))


def _lone_weights(layer: nn.Module, rows: Tensor) -> float:
    return float(((rows != 0).sum(dim=1) <= 1).double().mean())


def _even_signs(layer: nn.Module, rows: Tensor) -> float:
    """Return how much less the rows' numbers of negative weights vary than coin tosses."""
    filled = (rows != 0).sum(dim=1).double()
    deviation = ((rows < 0).sum(dim=1) - filled / 2).std()
    return _beyond_chance(float(deviation / (filled.mean().sqrt() / 2).clamp_min(1e-300)), len(rows))


def _even_sums(layer: nn.Module, rows: Tensor) -> float:
    """Return how much less the rows' sums vary than with random signs."""
    expected = rows.square().sum(dim=1).mean().sqrt().clamp_min(1e-300)
    return _beyond_chance(float(rows.sum(dim=1).std() / expected), len(rows))


def _beyond_chance(ratio: float, rows: int) -> float:
    """Return the distance of a ratio of deviations below 1, less five of its own deviations."""
    # that of m draws is known up to one part in sqrt(2 (m - 1))
    return max(0.0, 1 - ratio - 5 / math.sqrt(2 * (rows - 1)))


def _far_biases(layer: nn.Module, rows: Tensor) -> float:
    bias = getattr(layer, "bias", None)
    lengths = rows.norm(dim=1)
    filled = lengths > 0
    if bias is None or not filled.any():
        return 0.0
    return float((bias.detach().double().abs() / lengths)[filled].max())


_OF_WEIGHTS: Mapping[str, Callable[[nn.Module, Tensor], float]] = {
    "rank one": _rank_one,
    "lone weights": _lone_weights,
    "even signs": _even_signs,
    "even sums": _even_sums,
    "far biases": _far_biases,
}


def _image_wide(layers: Mapping[str, nn.Module], features: int) -> list[Finding]:
    if not any(isinstance(layer, nn.Conv2d) for layer in layers.values()):
        widths = {name: layer.out_features for name, layer in layers.items() if isinstance(layer, nn.Linear)}
        return [Finding(name, "image-wide layer", float(width == features)) for name, width in widths.items()]
    return [
        Finding(name, "image-wide layer", float(features in (layer.in_features, layer.out_features)))
        for name, layer in layers.items()
        if isinstance(layer, nn.Linear)
    ]


def _behaviour(model: nn.Module, layers: Mapping[str, nn.Module], inputs: Tensor) -> list[Finding]:
    outputs = _outputs(model, layers, inputs)
    found = []
    # the last layer gives the logits: no activation follows, and they span few directions
    for name in list(outputs)[:-1]:
        values = outputs[name]
        # a unit that is constant over all inputs is in step with nothing
        moving = values.t() - values.t().mean(dim=1, keepdim=True)
        moving = moving[moving.norm(dim=1) > 1e-6 * values.t().norm(dim=1)]
        found.append(Finding(name, "group in step", _largest_group(moving, IN_STEP)))
        if values.shape[1] >= ROWS:
            active = (values > 0).double().mean(dim=0)
            found.append(Finding(name, "silent units", float((active < SILENT).double().mean())))
            found.append(Finding(name, "units in step", _mean_correlation(moving)))
    return found


def _outputs(model: nn.Module, layers: Mapping[str, nn.Module], inputs: Tensor) -> dict[str, Tensor]:
    """Return the output of each layer (N, units) in eval mode, in the order of calls.

    Convolutions count where they see the whole image at once: elsewhere, neighbouring
    positions make honest channels alike.
    """
    found: dict[str, Tensor] = {}

    def note(name: str, output: Tensor) -> None:
        if isinstance(layers[name], nn.Linear):
            found.setdefault(name, output.detach().double().flatten(0, -2))
        elif output.shape[-2:].numel() == 1:
            found.setdefault(name, output.detach().double().flatten(1))

    handles = [
        layer.register_forward_hook(lambda _, args, output, name=name: note(name, output))
        for name, layer in layers.items()
    ]
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            model.eval()(inputs.to(next(model.parameters())))
    finally:
        for module, mode in modes:
            module.training = mode
        for handle in handles:
            handle.remove()
    return found


def _mean_correlation(moving: Tensor) -> float:
    """Return the mean absolute correlation of units (M, N) that are centred."""
    unit = F.normalize(_some(moving), dim=1).float()
    if len(unit) < 2:
        return 0.0
    total = sum(float((part @ unit.t()).abs().sum()) for part in unit.split(1024))
    return (total - len(unit)) / (len(unit) * (len(unit) - 1))


def _other_parameters(model: nn.Module, expected: nn.Module) -> float:
    ours, theirs = ({name: p.shape for name, p in m.named_parameters()} for m in (model, expected))
    return float(len(set(ours.items()) ^ set(theirs.items())))
