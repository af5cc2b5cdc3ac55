"""Manipulated models, plain and disguised, and how much of a batch their server still reads.

The server knows its disguise: it undoes scale and order of the rows, and takes from each row
and from each difference of neighbours the image that would explain it. A victim counts as
recovered if one of these is it.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.active import imprint, trap_weights
from attacks.active.bin_edges import measure, quantile_edges
from attacks.active.imprint_block import functional_weights
from benchmarks.honest_models import as_inputs
from fl_app.data import Dataset
from fl_app.data.dataset import Samples, pixels

PUBLIC = 2000
"""The last training pictures are the server's own."""
SEEN = 1000
"""Noise can avoid so many directions, in which the public pictures vary most."""
SAME = 1e-3
"""Images with a smaller mean squared error are the same."""


@dataclasses.dataclass(frozen=True, eq=False)
class Planted:
    """A manipulated model, and what its server knows of it."""

    model: nn.Module
    honest: nn.Module
    """The agreed model."""
    rows: str
    """The layer whose gradient holds images."""
    following: str
    """The layer that its units lead to."""
    order: Tensor
    """Which rows, from the lowest edge to the highest."""
    scales: Tensor
    """Factors of these; the following layer's columns are divided by them."""

    def layer(self, name: str) -> nn.Linear:
        found = self.model.get_submodule(name)
        assert isinstance(found, nn.Linear)
        return found


def public(data: Dataset) -> Tensor:
    """Return the server's own pictures, pixels in [0, 1]."""
    shuffled = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    return pixels(data.train.take(shuffled[-PUBLIC:]).inputs, "cpu")


def block(model: nn.Module, data: Dataset, bins: int, functional: str, seed: int = 0) -> Planted:
    """Put the block of Robbing the Fed in front of a model."""
    attack = imprint(bins, functional, seed=seed)
    planted = attack.plant(model, data.in_shape, public=public(data), mean=data.mean, std=data.std)
    return Planted(planted, model, "imprint.rows", "imprint.back", torch.arange(bins), torch.ones(bins))


def within(model: nn.Module, data: Dataset, bins: int, functional: str, seed: int = 0) -> Planted:
    """Make some of the first rows of an MLP with one hidden layer into bins; all else stays honest."""
    planted = copy.deepcopy(model)
    rows, output = planted.hidden1, planted.output
    weights = functional_weights(functional, data.in_shape, seed)
    values = measure(public(data), weights, data.mean, data.std)
    inner = quantile_edges(values, bins)
    edges = torch.tensor([float(values.min()), *inner])
    size = float(rows.weight.detach().norm(dim=1).mean())
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(len(rows.weight), generator=generator)[:bins]
    heights = size * (values[:, None] - edges).relu().sum(dim=1)
    column = torch.randn(len(output.weight), generator=generator)
    # no larger than the layer's own, and small enough for the softmax not to saturate
    size_of_column = min(float(output.weight.detach().std()), float(1 / heights.std()))
    with torch.no_grad():
        rows.weight[chosen] = (size * weights).to(rows.weight)
        rows.bias[chosen] = (-size * edges).to(rows.bias)
        output.weight[:, chosen] = size_of_column * column[:, None]
    return Planted(planted, model, "hidden1", "output", chosen, torch.ones(bins))


def scaled(planted: Planted, seed: int = 0) -> Planted:
    """Multiply each row by a factor of its own, between 1/10 and 10."""
    factors = 10 ** (2 * torch.rand(len(planted.order), generator=torch.Generator().manual_seed(seed)) - 1)
    changed = _copy(planted)
    rows, following = changed.layer(planted.rows), changed.layer(planted.following)
    with torch.no_grad():
        rows.weight[planted.order] *= factors[:, None]
        rows.bias[planted.order] *= factors
        following.weight[:, planted.order] /= factors
    return dataclasses.replace(changed, scales=planted.scales * factors)


def permuted(planted: Planted, seed: int = 0) -> Planted:
    """Put all rows of the layer in another order."""
    changed = _copy(planted)
    rows, following = changed.layer(planted.rows), changed.layer(planted.following)
    places = torch.randperm(len(rows.weight), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        rows.weight.copy_(rows.weight[places].clone())
        rows.bias.copy_(rows.bias[places].clone())
        following.weight.copy_(following.weight[:, places].clone())
    return dataclasses.replace(changed, order=places.argsort()[planted.order])


def noisy(planted: Planted, strength: float, avoid: Tensor | None = None, seed: int = 0) -> Planted:
    """Add Gaussian noise to the rows, ``strength`` times as long as these, but none along ``avoid``."""
    changed = _copy(planted)
    layer = changed.layer(planted.rows)
    weight = layer.weight
    noise = torch.randn((len(planted.order), weight.shape[1]), generator=torch.Generator().manual_seed(seed))
    if avoid is not None:
        noise = noise - (noise @ avoid) @ avoid.t()
    with torch.no_grad():
        lengths = weight[planted.order].norm(dim=1, keepdim=True)
        weight[planted.order] += strength * lengths * F.normalize(noise, dim=1)
        # as long as before, their edges included
        weight[planted.order] /= math.hypot(1, strength)
        layer.bias[planted.order] /= math.hypot(1, strength)
    return changed


def scrambled(planted: Planted, strength: float, seed: int = 0) -> Planted:
    """Add noise to the following layer too, ``strength`` times the length of its columns."""
    changed = _copy(planted)
    weight = changed.layer(planted.following).weight
    noise = torch.randn((len(weight), len(planted.order)), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        lengths = weight[:, planted.order].norm(dim=0)
        weight[:, planted.order] += strength * lengths * F.normalize(noise, dim=0)
    return changed


def shifted(planted: Planted, seed: int = 0) -> Planted:
    """Add a number of its own to each column of the output layer: a softmax does not see it."""
    changed = _copy(planted)
    weight = changed.layer(planted.following).weight
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        shifts = weight[:, planted.order].std() * torch.randn(len(planted.order), generator=generator)
        weight[:, planted.order] += shifts
    return changed


def seen_directions(data: Dataset) -> Tensor:
    """Return directions (features, SEEN) in which the public pictures vary most, as the model sees them."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (data.mean, data.std))
    inputs = ((public(data) - mean) / std).flatten(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.svd_lowrank(inputs, q=SEEN)[2]


def untouched(model: nn.Module) -> Planted:
    """Return an honest MLP as if it were planted: what a curious server reads without doing anything."""
    units = model.hidden1.out_features
    return Planted(model, model, "hidden1", "output", torch.arange(units), torch.ones(units))


def traps(model: nn.Module, data: Dataset, scale: float, seed: int = 0) -> Planted:
    """Set trap weights in an MLP's first layer."""
    planted = trap_weights(scale, seed).plant(model, data.in_shape, mean=data.mean, std=data.std)
    return dataclasses.replace(untouched(planted), honest=model)


def among(planted: Planted, share: float) -> Planted:
    """Keep the first ``share`` of an MLP's manipulated rows, and take the others from the honest model."""
    changed = _copy(planted)
    kept = math.ceil(share * len(planted.order))
    layer = changed.layer(planted.rows)
    with torch.no_grad():
        layer.weight[kept:] = planted.honest.hidden1.weight[kept:]
        layer.bias[kept:] = planted.honest.hidden1.bias[kept:]
    return changed


def uneven_traps(
    model: nn.Module, data: Dataset, scale: float, spread: float = 0.0, seed: int = 0
) -> Planted:
    """Set trap weights whose signs are tossed.

    The positive part of each row is scaled to ``scale`` times the negative one. With a
    ``spread`` of 1 the rows' sums vary as much as those of Gaussian weights, as well.
    """
    planted = traps(model, data, scale, seed)
    layer = planted.layer("hidden1")
    units, features = layer.weight.shape
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(units, features, generator=generator, dtype=torch.float64)
    above, below = drawn.relu(), (-drawn).relu()
    rows = scale * above * (below.sum(dim=1) / above.sum(dim=1))[:, None] - below
    tossed = torch.randn(units, 1, generator=generator, dtype=torch.float64)
    rows = rows + spread * tossed / math.sqrt(features)
    size = float(layer.weight.detach().double().std() / rows.std())
    mean, std = (
        torch.tensor(values, dtype=torch.float64).repeat_interleave(features // len(data.mean))
        for values in (data.mean, data.std)
    )
    with torch.no_grad():
        # as trap weights do: the rows act on pixels
        layer.weight.copy_(size * rows * std / std.mean())
        layer.bias.copy_(size * (rows @ mean) / std.mean())
    return planted


def recovered(planted: Planted, data: Dataset, batches: Sequence[Samples]) -> float:
    """Return the share of the victims that the server reads off the gradients of these batches."""
    found = []
    layer = planted.layer(planted.rows)
    for batch in batches:
        inputs = as_inputs(data, batch)
        loss = F.cross_entropy(planted.model(inputs), batch.labels)
        weight, bias = (g.double() for g in torch.autograd.grad(loss, [layer.weight, layer.bias]))
        scales = planted.scales.double()
        weight, bias = weight[planted.order] * scales[:, None], bias[planted.order] * scales
        weight, bias = torch.cat([weight, weight[:-1] - weight[1:]]), torch.cat([bias, bias[:-1] - bias[1:]])
        moved = bias.abs() > 1e-6 * bias.abs().max()
        guesses = weight[moved] / bias[moved, None]
        errors = torch.cdist(inputs.flatten(1).double(), guesses).square() / guesses.shape[1]
        # in pixels: an input is a pixel over the deviation
        errors = errors * sum(s * s for s in data.std) / len(data.std)
        found.append(errors.min(dim=1).values < SAME if len(guesses) else torch.zeros(len(inputs)).bool())
    return float(torch.cat(found).double().mean())


def _copy(planted: Planted) -> Planted:
    return dataclasses.replace(planted, model=copy.deepcopy(planted.model))
