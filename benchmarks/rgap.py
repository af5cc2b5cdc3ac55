"""Photographs solved for by R-GAP on CNN6, CNN6-d and FCN3: how well, how fast, and where it goes wrong.

``python -m benchmarks.rgap [--data FOLDER] [--picture FILE]``, with an image folder of CIFAR-10.
The victims are the first test picture of each of eight classes, each on an untrained model
of its own with one logit, labels 0 and 1 in turn and granted. FCN3 sees their grey middle of 28x28.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from matplotlib.ticker import NullLocator
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.analytic import rgap
from attacks.base import SolvedLayer
from attacks.metrics import psnr
from attacks.metrics.error import PSNR_CAP
from attacks.score import layer_errors
from benchmarks.photographs import DATA, MEAN, STD, photographs
from fl_app.models import cnn6, fcn3
from fl_app.report.charts.canvas import LIGHT, Theme, blank_chart, png_bytes
from fl_app.types import Observation, Truth

CROP = slice(2, 30)
"""The 28 middle rows and columns, the size of FCN3's images."""


class Recovered(NamedTuple):
    """One photograph."""

    psnr: float
    seconds: float
    """Processor time."""
    layers: Sequence[SolvedLayer]
    errors: Mapping[str, float]
    """Error of each layer's input, by the name of its weight."""


def recover(make: Callable[..., nn.Module], photos: Tensor) -> list[Recovered]:
    """Attack one gradient per photograph (C, H, W)."""
    found = []
    for number, photo in enumerate(photos):
        torch.manual_seed(number)
        pixels, label = photo[None], number % 2
        obs = observe(make(num_classes=2, in_shape=tuple(photo.shape), one_logit=True), pixels, label)
        began = time.process_time()
        result = rgap()(obs)
        seconds = time.process_time() - began
        errors = layer_errors(result, obs, Truth(pixels, torch.tensor([label])))
        found.append(Recovered(float(psnr(result.images, pixels)), seconds, result.layers, errors))
    return found


def observe(model: nn.Module, pixels: Tensor, label: int) -> Observation:
    """Return what the server sees of one step on an image (1, C, H, W), by the logistic loss."""
    mean, std = (MEAN, STD) if pixels.shape[1] == 3 else ((0.5,), (0.25,))
    shift, scale = (torch.tensor(values).view(-1, 1, 1) for values in (mean, std))
    logit = model((pixels - shift) / scale)
    loss = F.softplus(-logit if label else logit).sum()
    names = [name for name, _ in model.named_parameters()]
    return Observation(
        model,
        dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True)),
        batch_size=1,
        num_classes=2,
        input_shape=tuple(pixels.shape[1:]),
        mean=list(mean),
        std=list(std),
        labels=torch.tensor([label]),
        training=True,
    )


def draw_errors(found: Mapping[str, Sequence[Recovered]], theme: Theme = LIGHT) -> bytes:
    """Draw the error of each layer's input, from the output back: the median, and a dot for each image.

    Dashed is by how much the layer's equations disagree, which the attacker sees as well. A layer
    that its equations leave open has its rank beside it.
    """
    figure, axes = blank_chart(theme, width=6.6, height=3.8)
    names: list[str] = []
    for colour, (title, images) in zip(theme.series, found.items(), strict=False):
        names = [layer.name for layer in images[0].layers]
        places = range(len(names))
        errors = [[image.errors[name] for image in images] for name in names]
        doubts = [[image.layers[place].residual for image in images] for place in places]
        axes.plot(places, [median(row) for row in errors], color=colour, label=f"{title}: error of the input")
        axes.plot(
            places,
            [median(row) for row in doubts],
            color=colour,
            linestyle=(0, (4, 3)),
            label=f"{title}: its equations disagree by",
        )
        for place, row in zip(places, errors, strict=True):
            axes.plot([place] * len(row), row, ".", color=colour, markersize=4, alpha=0.6)
            layer = images[0].layers[place]
            if not layer.determined:
                axes.annotate(
                    f"rank {layer.rank:,} of {layer.unknowns:,}",
                    (place, median(row)),
                    xytext=(-8, 0),
                    textcoords="offset points",
                    ha="right",
                    va="center",
                    fontsize=9,
                    color=theme.muted,
                )
    axes.set_yscale("log", nonpositive="mask")  # equations that are used up do not disagree at all
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xticks(range(len(names)), [name.removesuffix(".weight") for name in names])
    axes.set(xlabel="layer, in the order in which they are solved", ylabel="relative error")
    axes.legend(frameon=False, fontsize=9, labelcolor=theme.ink, loc="center left")
    return png_bytes(figure)


def main(folder: Path = DATA, picture: Path | None = None) -> None:
    """Print the tables, and write the picture if a path is given."""
    if not folder.is_dir():
        print(f"benchmarks.rgap: expected the photographs of CIFAR-10 at {folder}, found nothing")
        return
    torch.set_num_threads(1)
    photos = photographs(folder)
    found = {"CNN6": recover(cnn6, photos)}
    print(
        _head(
            "model",
            f"PSNR dB, mean (at most {PSNR_CAP:.0f})",
            "least",
            "CPU s each",
            "peak memory so far, GB",
        )
    )
    print(_summary("CNN6", found["CNN6"]), flush=True)
    found["CNN6-d"] = recover(partial(cnn6, second=20), photos)
    print(_summary("CNN6-d", found["CNN6-d"]), flush=True)
    grey = photos.mean(dim=1, keepdim=True)[:, :, CROP, CROP]
    print(_summary("FCN3", recover(fcn3, grey)), flush=True)
    for title, images in found.items():
        print(f"\n{title}")
        print(_head("layer", "unknowns", "rank", "condition", "equations disagree by", "error of the input"))
        for place, layer in enumerate(images[0].layers):
            print(
                _layer_row([image.layers[place] for image in images], [i.errors[layer.name] for i in images])
            )
    if picture is not None:
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes(draw_errors(found))


def _head(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"


def _summary(title: str, images: Sequence[Recovered]) -> str:
    quality = [image.psnr for image in images]
    seconds = sum(image.seconds for image in images) / len(images)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux counts kilobytes
    return (
        f"| {title} | {sum(quality) / len(quality):.1f} | {min(quality):.1f} | {seconds:.2f} | {peak:.2f} |"
    )


def _layer_row(layers: Sequence[SolvedLayer], errors: Sequence[float]) -> str:
    ranks = sorted({layer.rank for layer in layers})
    rank = f"{ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
    numbers = (
        median(layer.condition for layer in layers),
        median(layer.residual for layer in layers),
        median(errors),
    )
    cells = [layers[0].name, str(layers[0].unknowns), rank, *(f"{number:.1e}" for number in numbers)]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.rgap", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--picture", type=Path, help="a PNG of the error by layer")
    given = parser.parse_args()
    main(given.data, given.picture)
