"""Claims of all experiments in one list, judged together to correct for multiple tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fl_app.experiments.site.study_records import HOLDS, OPEN, VERDICTS, ClaimRecord, StudyRecord
from fl_app.experiments.studies.significance import holm

LEVEL = 0.05


@dataclass(frozen=True)
class MergedClaim:
    """A claim among all others."""

    study: StudyRecord
    claim: ClaimRecord
    p_all: float | None
    """After Holm's correction for the tested claims of all experiments."""

    @property
    def verdict(self) -> str:
        """The verdict; what held among a few claims may be undecided among many."""
        doubtful = self.p_all is not None and self.p_all > LEVEL
        return OPEN if self.claim.verdict == HOLDS and doubtful else self.claim.verdict


def merge_claims(studies: Iterable[StudyRecord]) -> list[MergedClaim]:
    """Return all claims, in the order of their experiments."""
    claims = [(study, claim) for study in studies for claim in study.claims]
    tested = [i for i, (_, claim) in enumerate(claims) if claim.p is not None]
    adjusted = dict(zip(tested, holm([claims[i][1].p or 0.0 for i in tested]), strict=True))
    return [MergedClaim(study, claim, adjusted.get(i)) for i, (study, claim) in enumerate(claims)]


def verdict_counts(claims: Iterable[MergedClaim]) -> dict[str, int]:
    """Return how many claims have each verdict, in the order from good to not known."""
    counts = Counter(claim.verdict for claim in claims)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def claims_json(claims: Sequence[MergedClaim]) -> str:
    """Return the merged claims as a file."""
    listed = [
        {
            "study": merged.study.name,
            "scale": merged.study.scale,
            "paper": merged.study.paper,
            "what": merged.study.what,
            "name": merged.claim.name,
            "text": merged.claim.text,
            "verdict": merged.verdict,
            "verdict_in_study": merged.claim.verdict,
            "words": merged.claim.words,
            "left": merged.claim.left,
            "right": merged.claim.right,
            "n": merged.claim.n,
            "unit": merged.claim.unit,
            "p": merged.claim.p,
            "p_holm": merged.p_all,
        }
        for merged in claims
    ]
    content = {"counts": verdict_counts(claims), "level": LEVEL, "claims": listed}
    # left and right may be infinite, which JSON does not know; the words say so
    return json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value in (float("inf"), float("-inf")) else value
