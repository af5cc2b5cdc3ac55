"""Page of all claims in one table, refuted ones first."""

from __future__ import annotations

from collections.abc import Sequence

from fl_app.experiments.site.merged_claims import MergedClaim, verdict_counts
from fl_app.experiments.site.places import Places, link
from fl_app.experiments.site.verdict_words import verdict_mark, verdict_marks
from fl_app.experiments.studies.claims import LEVEL
from fl_app.report.data.formats import DASH
from fl_app.report.markup import Child, element, table
from fl_app.results.study import EQUIVALENT, HOLDS, OPEN, REFUTED, UNKNOWN

_ORDER = (REFUTED, EQUIVALENT, OPEN, HOLDS, UNKNOWN)


def claims_body(claims: Sequence[MergedClaim], places: Places) -> list[Child]:
    """Return the content of the page."""
    tested = sum(merged.claim.p is not None for merged in claims)
    rows: list[list[Child]] = [
        [
            verdict_mark(merged.claim.verdict),
            merged.claim.role,
            element("span", merged.claim.text, class_="sentence"),
            link(f"{merged.study.what}, {merged.study.scale}", places.study(merged.study), places.root),
            element("span", merged.claim.words, class_="sentence"),
            _probability(merged.claim.p),
            _probability(merged.claim.p_family),
        ]
        for merged in sorted(claims, key=lambda merged: _ORDER.index(merged.claim.verdict))
    ]
    return [
        element("p", "Claims", class_="eyebrow"),
        element("h1", "What the papers say, and what was found"),
        verdict_marks(verdict_counts(claims)),
        element(
            "p",
            f"{tested} of {len(claims)} claims were tested. p is two-sided; beside it, p times the number of "
            f"tests in the claim's family. A claim is decided if that is at most {LEVEL}. Claims without p "
            "were not measured, had too few updates or seeds, or compare numbers that are counted. ",
            link("As JSON", places.root / "claims.json", places.root),
        ),
        table(["verdict", "role", "claim", "from", "found", "p", "p in its family"], rows, words=5)
        if rows
        else None,
    ]


def _probability(p: float | None) -> str:
    return DASH if p is None else f"{p:.2g}"
