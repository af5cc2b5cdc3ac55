"""Verdicts by the criterion: pure arithmetic on what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from scipy.stats import t as student

from fl_app.bench.card import Accuracy, Attacked, Bytes, Card, Condition, Verdict
from fl_app.bench.criterion import Criterion


def interval(values: Sequence[float], confidence: float, *, sides: int = 2) -> tuple[float, float]:
    """Return Student's interval of the mean; of one value, everything."""
    if len(values) < 2:
        return -math.inf, math.inf
    tail = (1 - confidence) / sides
    mean, error = statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values))
    half = float(student.ppf(1 - tail, len(values) - 1)) * error
    return mean - half, mean + half


def attacked(
    attacker: str,
    knows: str,
    ssim: Sequence[Sequence[float]],
    psnr: Sequence[Sequence[float]],
    notes: Sequence[str],
    criterion: Criterion,
) -> Attacked:
    """Return the scores of one attacker on the images of each round that it recovers.

    The round whose images come out best on average counts; the best image is that of all rounds.
    """
    worst = max(range(len(ssim)), key=lambda i: statistics.fmean(ssim[i]))
    low, high = interval(ssim[worst], criterion.leak.confidence)
    return Attacked(
        attacker=attacker,
        knows=knows,
        ssim=list(ssim[worst]),
        psnr=list(psnr[worst]),
        mean=statistics.fmean(ssim[worst]),
        # no score leaves [-1, 1], and a file holds finite numbers
        low=max(low, -1.0),
        high=min(high, 1.0),
        best=max(max(row) for row in ssim),
        notes=list(notes),
    )


def judge_condition(
    condition: Condition, criterion: Criterion, *, expected: Sequence[str], of_criterion: bool = True
) -> Condition:
    """Return a condition with its worst attacker and its verdict; ``expected`` names all attackers.

    ``of_criterion``: the model and the images are some of the criterion's.
    """
    if not condition.attacks or condition.grey is None:
        return condition.model_copy(
            update={"verdict": "not measured", "why": condition.why or "not attacked"}
        )
    leak = criterion.leak
    limit = condition.grey + leak.above_grey
    worst = max(condition.attacks, key=lambda one: one.mean)
    best = max(one.best for one in condition.attacks)
    missing = [name for name in expected if name not in {one.attacker for one in condition.attacks}]
    shown = (
        f"mean {worst.mean:.3f} [{worst.low:.3f}, {worst.high:.3f}], limit {limit:.3f}; best image {best:.2f}"
    )
    verdict: Verdict
    if worst.low > limit or best > leak.best_image:
        verdict, why = "falls", f"{worst.attacker}: {shown}"
    elif missing:
        verdict, why = "not decided", f"{shown}; without the attackers {', '.join(missing)}"
    elif worst.high > limit:
        verdict, why = "not decided", f"{worst.attacker}: {shown}"
    elif not of_criterion or not _full(condition, criterion):
        verdict, why = "not refuted", f"{worst.attacker}: {shown}, in a smaller size than the criterion's"
    else:
        verdict, why = "holds", f"{worst.attacker}: {shown}"
    return condition.model_copy(
        update={"limit": limit, "worst": worst.attacker, "verdict": verdict, "why": why}
    )


def _full(condition: Condition, criterion: Criterion) -> bool:
    leak = criterion.leak
    return (
        condition.images >= leak.images
        and condition.steps >= leak.steps
        and condition.restarts >= leak.restarts
    )


def judge_accuracy(
    accuracy: Mapping[int, float],
    without: Mapping[int, float],
    rounds: int,
    criterion: Criterion,
    *,
    of_criterion: bool = True,
) -> Accuracy:
    """Return the paired difference by seed, its one-sided bounds and its verdict; shares, not percent."""
    seeds = sorted(accuracy.keys() & without.keys())
    found = Accuracy(
        rounds=rounds,
        seeds=list(seeds),
        accuracy=[accuracy[seed] for seed in seeds],
        without=[without[seed] for seed in seeds],
    )
    if not seeds:
        return found.model_copy(update={"why": "no pair of runs"})
    rule = criterion.accuracy
    points = [100 * (accuracy[seed] - without[seed]) for seed in seeds]
    mean = statistics.fmean(points)
    low, high = interval(points, rule.confidence, sides=1)
    finite = math.isfinite(low)
    shown = f"{mean:+.1f} points" + (f" [{low:+.1f}, {high:+.1f}]" if finite else "")
    verdict: Verdict
    if high < rule.least_points:
        verdict, why = "falls", shown
    elif low <= rule.least_points:
        verdict, why = "not decided", f"{shown}; the lower end must be above {rule.least_points:g}"
    elif not of_criterion or rounds < rule.rounds or set(rule.seeds) - set(seeds):
        verdict, why = "not refuted", f"{shown}, in a smaller size than the criterion's"
    else:
        verdict, why = "holds", shown
    bounds = {"low": low if finite else None, "high": high if finite else None}
    return found.model_copy(update={"points": mean, **bounds, "verdict": verdict, "why": why})


def judge_bytes(
    uplink: float | None, downlink: float | None, limit: float | None, dense: float | None
) -> Bytes:
    """Return the bytes and whether the uplink is within its limit."""
    found = Bytes(uplink=uplink, downlink=downlink, uplink_limit=limit, dense=dense)
    if uplink is None or limit is None:
        return found.model_copy(update={"why": "no run to count"})
    verdict: Verdict = "holds" if uplink <= limit else "falls"
    return found.model_copy(
        update={"verdict": verdict, "why": f"{uplink:.0f} of at most {limit:.0f} bytes up"}
    )


def judge(card: Card) -> tuple[Verdict, str]:
    """Return the verdict on a card: one part that falls decides, and to hold takes all parts."""
    parts = [
        *((f"{c.model}, {c.images_of}, {c.view}", c.verdict, c.why) for c in card.conditions),
        ("accuracy", card.accuracy.verdict, card.accuracy.why),
        ("bytes", card.bytes.verdict, card.bytes.why),
    ]
    fallen = [f"{name}: {why}" for name, verdict, why in parts if verdict == "falls"]
    if fallen:
        return "falls", "; ".join(fallen)
    if card.tuning:
        return "not measured", "measured with the seed for tuning"
    if all(verdict == "holds" for _, verdict, _ in parts) and not card.not_measured:
        return "holds", "every condition of the criterion, in full"
    open_ = [f"{name}: {why}" for name, verdict, why in parts if verdict == "not decided"]
    if open_:
        return "not decided", "; ".join(open_)
    if all(verdict == "not measured" for _, verdict, _ in parts):
        return "not measured", "nothing was measured"
    return "not refuted", "nothing that was measured refutes it; see what was not measured"
