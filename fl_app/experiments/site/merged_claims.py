"""Claims of all experiments in one list, judged together to correct for multiple tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fl_app.experiments.studies.claims import LEVEL
from fl_app.experiments.studies.significance import holm
from fl_app.results import json_text
from fl_app.results.study import HOLDS, OPEN, VERDICTS, StudyClaim, StudyResult, Verdict


@dataclass(frozen=True)
class MergedClaim:
    """A claim among all others."""

    study: StudyResult
    claim: StudyClaim
    p_all: float | None
    """After Holm's correction for the tested claims of all experiments."""

    @property
    def verdict(self) -> Verdict:
        """The verdict; what held among a few claims may be undecided among many."""
        doubtful = self.p_all is not None and self.p_all > LEVEL
        return OPEN if self.claim.verdict == HOLDS and doubtful else self.claim.verdict


def merge_claims(studies: Iterable[StudyResult]) -> list[MergedClaim]:
    """Return all claims, in the order of their experiments."""
    claims = [(study, claim) for study in studies for claim in study.claims]
    tested = [i for i, (_, claim) in enumerate(claims) if claim.p is not None]
    adjusted = dict(zip(tested, holm([claims[i][1].p or 0.0 for i in tested]), strict=True))
    return [MergedClaim(study, claim, adjusted.get(i)) for i, (study, claim) in enumerate(claims)]


def verdict_counts(claims: Iterable[MergedClaim]) -> dict[Verdict, int]:
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
            **merged.claim.as_json(),
            "verdict": merged.verdict,
            "verdict_in_study": merged.claim.verdict,
            "p_holm": merged.p_all,
        }
        for merged in claims
    ]
    # left and right may be infinite, which JSON does not know; the words say so
    return json_text({"counts": verdict_counts(claims), "level": LEVEL, "claims": listed}, ascii_only=False)
