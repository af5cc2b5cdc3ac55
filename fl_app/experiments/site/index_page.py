"""First page of the site, by paper: measurements, verdicts, and gaps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fl_app.experiments.papers import in_order, paper_name
from fl_app.experiments.site.merged_claims import MergedClaim, verdict_counts
from fl_app.experiments.site.places import Places, link
from fl_app.experiments.site.verdict_words import verdict_marks
from fl_app.report.markup import Child, Html, element
from fl_app.results.study import HOLDS, REFUTED, StudyResult


def index_body(
    studies: Sequence[StudyResult], claims: Sequence[MergedClaim], places: Places, picture: Path | None
) -> list[Child]:
    """Return the content of the page; ``picture`` is the frontier, if there is one."""
    return [
        element("p", "Reports", class_="eyebrow"),
        element("h1", "What updates leak, and what each defense costs"),
        element(
            "p",
            f"{_count(len(studies), 'experiment')} and {_count(len(places.reports), 'run')}. A claim is a "
            "sentence of a paper that the measurements were asked about. The paper's protocol fixes how many "
            "tests are judged together; a test that two experiments make counts once.",
        ),
        verdict_marks(verdict_counts(claims)) if claims else None,
        element("p", link("Which defense is worth its price: the frontier", picture, places.root))
        if picture
        else None,
        *(_paper(key, studies, claims, places) for key in in_order(study.paper for study in studies)),
    ]


def _paper(
    key: str, studies: Sequence[StudyResult], claims: Sequence[MergedClaim], places: Places
) -> list[Child]:
    mine = [study for study in studies if study.paper == key]
    missing = [f"{study.what}, scale {study.scale}: {reason}" for study in mine for reason in study.missing]
    return [
        element("h2", paper_name(key)),
        element("div", [_card(study, claims, places) for study in mine], class_="cards"),
        [
            element("h3", "Not reproduced"),
            element("ul", [element("li", reason) for reason in missing]),
        ]
        if missing
        else None,
    ]


def _card(study: StudyResult, claims: Sequence[MergedClaim], places: Places) -> Html:
    counts = verdict_counts(claim for claim in claims if claim.study is study)
    tone = "open" if counts[REFUTED] else "shut" if counts[HOLDS] == sum(counts.values()) > 0 else ""
    done = sum(cell.status == "finished" for cell in study.cells)
    facts = [
        f"scale {study.scale}",
        f"measured {study.measured}",
        f"{done} of {len(study.cells)} cells",
        *([] if study.finished else ["not finished"]),
    ]
    return element(
        "section",
        element("h3", link(study.heading, places.study(study), places.root)),
        verdict_marks(counts),
        element("p", " · ".join(facts), class_="muted"),
        class_=f"card {tone}".strip(),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
