"""Rates of a membership test, each with an interval: ROC, TPR at a low FPR, AUC.

A threshold that is chosen and judged on the same records looks better than it is. So one half of the
records chooses thresholds and the best statistic, and the other half reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from scipy.special import ndtri
from scipy.stats import beta, rankdata
from torch import Tensor

RATES = (0.1, 0.01, 0.001)
CONFIDENCE = 0.95
_MOST_STEPS = 200
"""Corners of a stored ROC curve, at most."""


def clopper_pearson(hits: int, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the exact interval of a rate."""
    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high


def area(scores: Tensor, members: Tensor) -> float:
    """Return the probability that a member scores above a stranger; ties count half."""
    inside, outside = int(members.sum()), int((~members).sum())
    ranks = torch.from_numpy(rankdata(scores.double().numpy()))
    return float((ranks[members].sum() - inside * (inside + 1) / 2) / (inside * outside))


def area_interval(
    value: float, inside: int, outside: int, confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Return Newcombe's score interval of an AUC (2006, method 5), which also holds at 0 and 1."""
    z = float(ndtri((1 + confidence) / 2))
    pairs, extra = inside * outside, (inside + outside) / 2 - 1

    def beyond(true: float) -> float:
        spread = true * (1 - true) * (1 + extra * ((1 - true) / (2 - true) + true / (1 + true))) / pairs
        return abs(value - true) - z * math.sqrt(spread)

    return _edge(beyond, value, 0.0), _edge(beyond, value, 1.0)


def roc(scores: Tensor, members: Tensor) -> list[list[float]]:
    """Return the corners (FPR, TPR) of the curve, from (0, 0) to (1, 1)."""
    thresholds = torch.unique(scores).flip(0)
    inside, outside = scores[members], scores[~members]
    if len(thresholds) > _MOST_STEPS:
        thresholds = thresholds[torch.linspace(0, len(thresholds) - 1, _MOST_STEPS).long()]
    points = [
        [float((outside >= t).double().mean()), float((inside >= t).double().mean())] for t in thresholds
    ]
    return [[0.0, 0.0], *points]


def threshold_at(outside: Tensor, rate: float) -> float | None:
    """Return the least threshold that at most ``rate`` of the strangers pass; None if they are too few."""
    allowed = math.floor(rate * len(outside) + 1e-9)
    if allowed < 1:
        return None
    return float(outside.sort(descending=True).values[allowed]) if allowed < len(outside) else -math.inf


def halves(members: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Return masks of a half that chooses and of one that reports, each with half of the members."""
    generator = torch.Generator().manual_seed(seed)
    choosing = torch.zeros_like(members)
    for group in (members, ~members):
        indices = torch.nonzero(group).flatten()
        order = torch.randperm(len(indices), generator=generator)
        choosing[indices[order[: len(indices) // 2]]] = True
    return choosing, ~choosing


def measure_statistic(
    scores: Tensor, members: Tensor, choosing: Tensor, rates: Sequence[float] = RATES
) -> dict[str, Any]:
    """Return a statistic's AUC and curve over all records, and its rates on the reporting half."""
    reporting = ~choosing
    value = area(scores, members)
    low, high = area_interval(value, int(members.sum()), int((~members).sum()))
    points = []
    for rate in rates:
        threshold = threshold_at(scores[choosing & ~members], rate)
        if threshold is None:
            points.append({"rate": rate})
            continue
        inside, outside = scores[reporting & members], scores[reporting & ~members]
        hits, alarms = int((inside > threshold).sum()), int((outside > threshold).sum())
        tpr, fpr = clopper_pearson(hits, len(inside)), clopper_pearson(alarms, len(outside))
        points.append(
            {
                "rate": rate,
                "tpr": hits / len(inside),
                "tpr_low": tpr[0],
                "tpr_high": tpr[1],
                "fpr": alarms / len(outside),
                "fpr_low": fpr[0],
                "fpr_high": fpr[1],
                "hits": hits,
                "alarms": alarms,
            }
        )
    return {"auc": value, "auc_low": low, "auc_high": high, "points": points, "roc": roc(scores, members)}


def measure(scores: Mapping[str, Tensor], members: Tensor, *, seed: int = 0) -> dict[str, Any]:
    """Return the rates of all statistics, and of the one that is best on the choosing half.

    ``best`` names it; ``best_auc`` and its limits are those of the reporting half alone.
    """
    members = members.bool()
    inside, outside = int(members.sum()), int((~members).sum())
    if min(inside, outside) < 2:
        raise ValueError(
            f"membership: expected at least 2 members and 2 strangers, got {inside} and {outside}"
        )
    choosing, reporting = halves(members, seed)
    chosen = {name: area(values[choosing], members[choosing]) for name, values in scores.items()}
    best = max(chosen, key=lambda name: chosen[name])
    kept = members[reporting]
    value = area(scores[best][reporting], kept)
    low, high = area_interval(value, int(kept.sum()), int((~kept).sum()))
    return {
        "members": inside,
        "strangers": outside,
        "reporting_members": int(kept.sum()),
        "reporting_strangers": int((~kept).sum()),
        "best": best,
        "best_auc": value,
        "best_auc_low": low,
        "best_auc_high": high,
        "statistics": {name: measure_statistic(values, members, choosing) for name, values in scores.items()},
    }


def _edge(beyond: Callable[[float], float], inner: float, outer: float) -> float:
    """Return the point between ``inner`` and ``outer`` at which ``beyond`` becomes positive."""
    if beyond(outer) <= 0:
        return outer
    for _ in range(60):
        middle = (inner + outer) / 2
        if beyond(middle) > 0:
            outer = middle
        else:
            inner = middle
    return inner
