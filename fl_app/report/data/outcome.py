"""Outcome of attacks in three grades by stated thresholds; colours and words of a report follow it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from itertools import zip_longest

from fl_app.results import Attack

RECOGNISABLE_FROM, DEGRADED_FROM = 0.5, 0.3
"""SSIM, share of tokens or F1 of labels; papers call pictures above 0.5 recognisable."""
CLOSE_FROM = 25.0
"""PSNR in dB above which a picture counts as recognisable whatever its SSIM is."""
THRESHOLDS = (
    f"Recognisable: SSIM (text: share of right tokens, labels: F1) of at least {RECOGNISABLE_FROM}, "
    f"or PSNR of at least {CLOSE_FROM:g} dB; "
    f"degraded: at least {DEGRADED_FROM}; below that, not recognisable. The thresholds are ours."
)


class Outcome(StrEnum):
    """Grade of the attacker's best result."""

    RECOGNISABLE = "recognisable"
    DEGRADED = "degraded"
    HIDDEN = "not recognisable"
    UNKNOWN = "not measured"

    @property
    def look(self) -> str:
        """CSS class; colours are told apart by an icon as well."""
        return {"recognisable": "open", "degraded": "half", "not recognisable": "shut"}.get(
            self.value, "unknown"
        )

    @property
    def icon(self) -> str:
        """Sign beside the words, for readers who do not see the colour."""
        return {"recognisable": "▲", "degraded": "◆", "not recognisable": "●"}.get(self.value, "–")


def grade_picture(attack: Attack, position: int) -> Outcome:
    """Return the grade of one picture of an attack."""
    scores = _pictures(attack)
    return _grade(scores[position] if position < len(scores) else None)


def outcome_of(attacks: Iterable[Attack]) -> Outcome:
    """Return the grade of the attacker's best result over all attacks."""
    return _grade(max((score for attack in attacks for score in _scores(attack)), default=None))


def count_recognised(attacks: Iterable[Attack]) -> tuple[int, int]:
    """Return how many attacked pictures the best attack on each left recognisable, and how many there are."""
    best: dict[tuple[object, ...], float] = {}
    for attack in attacks:
        for position, score in enumerate(_pictures(attack)):
            place = (attack.round, attack.client, position)
            best[place] = max(best.get(place, 0.0), score or 0.0)
    return sum(score >= RECOGNISABLE_FROM for score in best.values()), len(best)


def _grade(score: float | None) -> Outcome:
    if score is None:
        return Outcome.UNKNOWN
    if score >= RECOGNISABLE_FROM:
        return Outcome.RECOGNISABLE
    return Outcome.DEGRADED if score >= DEGRADED_FROM else Outcome.HIDDEN


def _pictures(attack: Attack) -> list[float | None]:
    """Return a score between 0 and 1 for each picture: SSIM, or 1 where PSNR alone says enough."""
    pairs = zip_longest(attack.scores("ssim"), attack.scores("psnr"))
    return [1.0 if psnr is not None and psnr >= CLOSE_FROM else ssim for ssim, psnr in pairs]


def _scores(attack: Attack) -> list[float]:
    found = [score for score in _pictures(attack) if score is not None]
    if not found:
        found = [
            value for value in (attack.token_accuracy, attack.label_scores.get("f1")) if value is not None
        ]
    if not found and (rate := attack.others.get("token_wer")) is not None:
        found = [max(0.0, 1.0 - rate)]
    return found
