"""PSNR, SSIM and LPIPS where they stand: a title to hover, and a footnote with pictures at known PSNR."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image

from fl_app.report.charts.tiles import tile_uri
from fl_app.report.data.formats import format_number
from fl_app.report.data.outcome import THRESHOLDS
from fl_app.report.data.scores import Metric
from fl_app.report.markup import Html, details, element

MEANINGS = {
    "PSNR": (
        "Peak signal-to-noise ratio, in dB: how small the mean squared error of the pixels is. 10 dB more is "
        "a tenth of the error; ∞ is exact."
    ),
    "SSIM": (
        "Structural similarity: how well light, contrast and edges agree in small windows. 1 is the "
        "original, 0 is nothing in common."
    ),
    "LPIPS": (
        "Learned perceptual distance: how differently a trained network sees the two pictures. 0 is the "
        "same; lower is closer."
    ),
    "MSE": "Mean squared error of the pixels, from 0 to 1. Lower is closer.",
}
EXAMPLES_DB = (10, 15, 20, 30)
_SIDE = 64


def metric_name(metric: Metric, unit: str = "") -> Html:
    """Return the name of a metric with its meaning as a title."""
    return element("abbr", f"{metric.title}{unit}", title=MEANINGS[metric.title])


def metric_notes() -> Html:
    """Return the footnote: meanings, thresholds, and one picture with more and more noise."""
    terms = [
        part for name, meaning in MEANINGS.items() for part in (element("dt", name), element("dd", meaning))
    ]
    return details(
        "How to read PSNR, SSIM and LPIPS",
        element("dl", terms, class_="terms"),
        _strip(),
        element("p", THRESHOLDS, class_="muted"),
        id_="metrics",
    )


@lru_cache(maxsize=1)
def _strip() -> Html:
    truth = example_picture()
    figures = [_figure(truth, "original", None)]
    for decibels in EXAMPLES_DB[::-1]:
        noisy = with_noise(truth, decibels)
        score = _similarity(truth, noisy)
        figures.append(_figure(noisy, f"{decibels} dB, SSIM {format_number(score, 2)}", decibels))
    words = element(
        "p",
        "One picture with noise at these values of PSNR. Attacks blur and shift as well: the same PSNR may "
        "then show more or less.",
        class_="muted",
    )
    return element("div", element("div", figures, class_="examples"), words)


def example_picture() -> np.ndarray:
    """Return the astronaut's portrait, (side, side, 3) in [0, 1]."""
    from skimage.data import astronaut

    face = Image.fromarray(astronaut()).crop((105, 0, 345, 240))
    return np.asarray(face.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR), dtype=np.float64) / 255


def with_noise(truth: np.ndarray, decibels: float) -> np.ndarray:
    """Return the picture with Gaussian noise, clipped to 8 bits, at the given PSNR."""
    noise = np.random.default_rng(0).standard_normal(truth.shape)
    low, high = 0.0, 8.0
    for _ in range(40):  # clipping makes it no closed form
        middle = (low + high) / 2
        error = float(np.mean((_levels(truth + middle * noise) - truth) ** 2))
        low, high = (middle, high) if error < 10 ** (-decibels / 10) else (low, middle)
    return _levels(truth + low * noise)


def _levels(picture: np.ndarray) -> np.ndarray:
    return np.asarray((picture.clip(0, 1) * 255).round() / 255)


def _similarity(truth: np.ndarray, other: np.ndarray) -> float:
    from skimage.metrics import structural_similarity

    return float(structural_similarity(truth, other, channel_axis=2, data_range=1.0))


def _figure(picture: np.ndarray, caption: str, decibels: int | None) -> Html:
    image = Image.fromarray((picture * 255).round().astype(np.uint8))
    return element(
        "figure",
        element("img", class_="tile", src=tile_uri(image), alt=f"a portrait, {caption}"),
        element("figcaption", caption),
        data_psnr=None if decibels is None else str(decibels),
    )
