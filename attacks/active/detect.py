"""What a client can see of a manipulated model before it trains on it.

Each check is a number per layer and a threshold that no honest model reached, trained or
not. Checks of the weights name the known attacks; those of behaviour, on the client's own
data, hold against weights that are disguised: rows can only sort samples into bins if
they rise and fall together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

WHO = "inspect_model"
ROWS, COLUMNS = 8, 16
"""Smaller layers are not judged: there, chance makes rows parallel."""
MOST_ROWS = 512
"""Of larger layers so many rows are looked at, evenly spread."""
SILENT = 0.05
"""A unit that is active on a smaller share of the inputs is silent."""
COSINE = 0.98
"""Rows are parallel above this."""


class Check(NamedTuple):
    """A threshold on one number of a layer, and what it means to be beyond it."""

    threshold: float
    meaning: str


CHECKS: Mapping[str, Check] = {
    "parallel rows": Check(0.25, "this share of the rows are copies of others, up to scale"),
    "rank one": Check(0.6, "this share of the weights' energy is in a single direction"),
    "lone weights": Check(0.25, "this share of the rows have at most one weight: they pass inputs on"),
    "even signs": Check(5.0, "deviations by which the rows' negative weights are more even than tosses"),
    "far biases": Check(5.0, "a bias is this many times as large as its row's weights together"),
    "image-wide layer": Check(0.5, "a linear layer as wide as the image, beside convolutions"),
    "silent units": Check(0.5, "this share of the units are active on less than 1 in 20 inputs"),
    "units in step": Check(0.8, "the units' mean correlation over the inputs"),
    "other architecture": Check(0.5, "this many parameters are not those of the expected model"),
}
"""By name. Numbers above the threshold are findings."""


class Finding(NamedTuple):
    """A number that no honest model has."""

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
    """Return what is suspicious in a model, nothing if it looks honest.

    ``inputs`` (N, C, H, W) are the client's own, as the model sees them, 32 or more; without
    them noise of shape ``in_shape`` is taken, and without either only weights are looked
    at. ``expected`` is the architecture that was agreed on, with any weights.
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
    """Return the number of every check on every layer, below the threshold or not."""
    if inputs is not None and (inputs.ndim < 2 or len(inputs) < 2):
        raise ValueError(f"{WHO}: inputs must be a batch of two or more, got {tuple(inputs.shape)}")
    if inputs is None and in_shape is not None:
        generator = torch.Generator(device="cpu").manual_seed(0)
        inputs = torch.randn((64, *in_shape), generator=generator, device="cpu")
    shape = tuple(inputs.shape[1:]) if inputs is not None else None
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    }
    found = []
    for name, layer in layers.items():
        rows = layer.weight.detach().double().flatten(1)
        if rows.shape[0] >= ROWS and rows.shape[1] >= COLUMNS:
            found += [Finding(name, check, number(layer, rows)) for check, number in _OF_WEIGHTS.items()]
    if shape is not None:
        found += _image_wide(layers, math.prod(shape))
    if inputs is not None:
        found += _behaviour(model, layers, inputs)
    if expected is not None:
        found.append(Finding("model", "other architecture", _other_parameters(model, expected)))
    return found


def _parallel_rows(layer: nn.Module, rows: Tensor) -> float:
    some = _some(rows)
    some = some[some.norm(dim=1) > 0]
    unit = some / some.norm(dim=1, keepdim=True)
    cosines = (unit @ unit.t()).abs().fill_diagonal_(0)
    return float((cosines > COSINE).any(dim=1).double().mean()) if len(some) > 1 else 0.0


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
    """Return how surely the numbers of negative weights in the rows vary less than coin tosses would."""
    filled = (rows != 0).sum(dim=1).double()
    deviation = ((rows < 0).sum(dim=1) - filled / 2).std()
    ratio = float(deviation / (filled.mean().sqrt() / 2).clamp_min(1e-300))
    # the deviation of m tosses is itself known up to one part in sqrt(2 (m - 1))
    return max(0.0, 1 - ratio) * math.sqrt(2 * (len(rows) - 1))


def _far_biases(layer: nn.Module, rows: Tensor) -> float:
    bias = getattr(layer, "bias", None)
    lengths = rows.norm(dim=1)
    if bias is None or not lengths.any():
        return 0.0
    return float((bias.detach().double().abs() / lengths)[lengths > 0].max())


_OF_WEIGHTS: Mapping[str, Callable[[nn.Module, Tensor], float]] = {
    "parallel rows": _parallel_rows,
    "rank one": _rank_one,
    "lone weights": _lone_weights,
    "even signs": _even_signs,
    "far biases": _far_biases,
}


def _some(rows: Tensor) -> Tensor:
    return rows[:: -(-len(rows) // MOST_ROWS)]


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
    # the last one gives the logits, which no activation follows and few directions fill
    for name in list(outputs)[:-1]:
        values = outputs[name]
        if values.shape[1] < ROWS:
            continue
        if isinstance(layers[name], nn.Linear):
            active = (values > 0).double().mean(dim=0)
            found.append(Finding(name, "silent units", float((active < SILENT).double().mean())))
            found.append(Finding(name, "units in step", _mean_correlation(values)))
    return found


def _outputs(model: nn.Module, layers: Mapping[str, nn.Module], inputs: Tensor) -> dict[str, Tensor]:
    """Return what each linear layer gives (N, units) in eval mode, in the order of calls."""
    found: dict[str, Tensor] = {}

    def note(name: str, output: Tensor) -> None:
        found.setdefault(name, output.detach().double().flatten(1))

    handles = [
        layer.register_forward_hook(lambda _, args, output, name=name: note(name, output))
        for name, layer in layers.items()
        if isinstance(layer, nn.Linear)
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


def _mean_correlation(values: Tensor) -> float:
    values = _some(values.t())
    values = values - values.mean(dim=1, keepdim=True)
    lengths = values.norm(dim=1, keepdim=True)
    unit = (values / lengths.clamp_min(1e-300))[lengths.flatten() > 0]
    if len(unit) < 2:
        return 0.0
    cosines = (unit @ unit.t()).abs()
    return float((cosines.sum() - len(unit)) / (len(unit) * (len(unit) - 1)))


def _other_parameters(model: nn.Module, expected: nn.Module) -> float:
    ours, theirs = ({name: p.shape for name, p in m.named_parameters()} for m in (model, expected))
    return float(len(set(ours.items()) ^ set(theirs.items())))
