"""Which score is bad news: the worst case for the user is the best image for the attacker."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fl_app.report.data.formats import format_number, format_psnr, format_short
from fl_app.results import Attack


class Metric(NamedTuple):
    """A measure of similarity between the original and its reconstruction."""

    name: str
    title: str
    closest: Callable[[Iterable[float]], float]
    """`max` if a higher value is closer to the original, `min` if a lower one is."""
    show: Callable[[float | None], str]


PSNR = Metric("psnr", "PSNR", max, format_psnr)
SSIM = Metric("ssim", "SSIM", max, lambda value: format_number(value, 3))
LPIPS = Metric("lpips", "LPIPS", min, lambda value: format_number(value, 3))
MSE = Metric("mse", "MSE", min, format_short)
METRICS = (PSNR, SSIM, LPIPS, MSE)


class Form(NamedTuple):
    """One of several tries at the same images."""

    attack: str
    adaptive: bool
    labels_from: str | None
    settings: str = ""
    """Hash of the attack's settings."""


def worst_score(metric: Metric, attacks: Iterable[Attack]) -> float | None:
    """Return the score of the image that came closest to its original."""
    values = _values(metric, attacks)
    return metric.closest(values) if values else None


def mean_score(metric: Metric, attacks: Iterable[Attack]) -> float | None:
    """Return the mean over all scored images, of the form of the attack that is worst for the user."""
    means = means_by_form(metric, attacks)
    return metric.closest(means.values()) if means else None


def means_by_form(metric: Metric, attacks: Iterable[Attack]) -> dict[Form, float]:
    """Return the mean over all scored images of every form: they are not averaged with each other."""
    forms: dict[Form, list[Attack]] = {}
    for attack in attacks:
        forms.setdefault(_form(attack), []).append(attack)
    return {
        form: mean for form, tries in forms.items() if (mean := mean_of(_values(metric, tries))) is not None
    }


def _form(attack: Attack) -> Form:
    return Form(attack.name, attack.adaptive, attack.labels_from, attack.settings_hash)


def mean_of(values: Sequence[float]) -> float | None:
    """Return the mean; None of nothing, and None where infinities cancel."""
    mean = statistics.fmean(values) if values else math.nan
    return None if math.isnan(mean) else mean


def closest_image(attacks: Iterable[Attack]) -> tuple[Attack, int] | None:
    """Return the attack and the position of the image that came closest, by PSNR, else by SSIM."""
    candidates = list(attacks)
    for metric in (PSNR, SSIM):
        ranked = [
            (value, -order, -position)
            for order, attack in enumerate(candidates)
            for position, value in enumerate(attack.scores(metric.name))
            if value is not None
        ]
        if ranked:
            _, order, position = max(ranked)
            return candidates[-order], -position
    return None


def lacks_lpips(attacks: Iterable[Attack]) -> bool:
    """Whether images were scored but LPIPS was not: its weights were not there."""
    attacks = list(attacks)
    return bool(_values(PSNR, attacks)) and not _values(LPIPS, attacks)


def _values(metric: Metric, attacks: Iterable[Attack]) -> list[float]:
    return [value for attack in attacks for value in attack.scores(metric.name) if value is not None]
