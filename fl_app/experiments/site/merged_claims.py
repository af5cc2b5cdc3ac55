"""Claims of all experiments in one list, each test counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fl_app.experiments.studies.claims import LEVEL
from fl_app.experiments.studies.protocol import REPEATS
from fl_app.results import json_text
from fl_app.results.study import VERDICTS, StudyClaim, StudyResult, Verdict


@dataclass(frozen=True)
class MergedClaim:
    """A claim and the experiment that judged it."""

    study: StudyResult
    claim: StudyClaim


def merge_claims(studies: Iterable[StudyResult]) -> list[MergedClaim]:
    """Return all claims of whole studies, in the order of their experiments; variants decide none."""
    return [MergedClaim(study, claim) for study in studies if not study.is_variant for claim in study.claims]


def verdict_counts(claims: Iterable[MergedClaim]) -> dict[Verdict, int]:
    """Return the number of claims per verdict, in the order of `VERDICTS`; repeated tests count once."""
    counts = Counter(merged.claim.verdict for merged in claims if merged.claim.role != REPEATS)
    return {verdict: counts[verdict] for verdict in VERDICTS}


def claims_json(claims: Sequence[MergedClaim]) -> str:
    """Return the merged claims as a file."""
    listed = [
        {
            "study": merged.study.name,
            "scale": merged.study.scale,
            "paper": merged.study.paper,
            "what": merged.study.what,
            "protocol": merged.study.protocol,
            **merged.claim.as_json(),
        }
        for merged in claims
    ]
    # JSON has no infinity for left and right; the words mention it
    return json_text({"counts": verdict_counts(claims), "level": LEVEL, "claims": listed}, ascii_only=False)
