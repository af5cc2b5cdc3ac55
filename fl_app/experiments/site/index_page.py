"""First page of the site: the user's own runs, then by paper measurements, verdicts, and gaps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fl_app.experiments.papers import in_order, paper_name
from fl_app.experiments.site.merged_claims import MergedClaim, verdict_counts
from fl_app.experiments.site.places import Places, link
from fl_app.experiments.site.verdict_words import verdict_marks
from fl_app.report.data.comparison import ComparisonRow, show_spread
from fl_app.report.data.formats import DASH, format_number, format_percent
from fl_app.report.data.outcome import THRESHOLDS, outcome_of
from fl_app.report.data.update_kinds import as_sent
from fl_app.report.markup import Child, Html, element, table
from fl_app.results.study import HOLDS, REFUTED, StudyResult

_MOST_OWN = 60
"""Rows of the user's own configurations; all of them are on the page of all runs."""


def index_body(
    studies: Sequence[StudyResult],
    claims: Sequence[MergedClaim],
    rows: Sequence[ComparisonRow],
    places: Places,
    picture: Path | None,
) -> list[Child]:
    """Return the content of the page; ``picture`` is the frontier, if there is one."""
    whole = [study for study in studies if not study.is_variant]
    variants = len(studies) - len(whole)
    counted = f"{_count(len(whole), 'experiment')} and {_count(len(places.reports), 'run')}"
    return [
        element("p", "Reports", class_="eyebrow"),
        element("h1", "What updates leak, and what each defense costs"),
        element(
            "p",
            counted,
            f"; {_count(variants, 'variant')}, not counted." if variants else ".",
            data_fact="counts",
        ),
        element("p", link("Which defense is worth its price: the frontier", picture, places.root))
        if picture
        else None,
        *_own_runs(studies, rows, places),
        *_papers(studies, claims, places),
    ]


def _own_runs(studies: Sequence[StudyResult], rows: Sequence[ComparisonRow], places: Places) -> list[Child]:
    """Return a table of the runs that belong to no study, the newest first."""
    cells = {study.folder_of(cell) for study in studies for cell in study.cells}
    own = [row for row in rows if not any(run.folder.resolve() in cells for run in row.runs)]
    if not own:
        return []
    own.sort(key=lambda row: max(run.folder.as_posix() for run in row.runs), reverse=True)
    lines = [_own_row(row, places) for row in own[:_MOST_OWN]]
    rest = link("All runs in one table", places.root / "comparison.html", places.root)
    header = ["defense", "model, data", "leak", "best SSIM", "accuracy", "seeds"]
    return [
        element("h2", "Your runs", data_part="own-runs"),
        table(header, lines, words=3, caption="Runs that belong to no experiment, the newest first"),
        element("p", rest, f": {len(own) - _MOST_OWN} more." if len(own) > _MOST_OWN else "."),
    ]


def _own_row(row: ComparisonRow, places: Places) -> list[Child]:
    outcome = outcome_of(attack for run in row.runs for attack in as_sent(run))
    report = places.report(row.runs[0].folder)
    grade = element(
        "span", f"{outcome.icon} {outcome.value}", class_=f"verdict {outcome.look}", title=THRESHOLDS
    )
    return [
        [
            link(row.defense, report, places.root) if report else row.defense,
            element("small", row.differs) if row.differs else None,
            None if row.status == "finished" else element("small", row.status),
        ],
        f"{row.model}, {row.data}",
        grade,
        show_spread(row.defended.worst["ssim"], lambda value: format_number(value, 3)),
        show_spread(row.accuracy, format_percent),
        ", ".join(row.seeds) or DASH,
    ]


def _papers(studies: Sequence[StudyResult], claims: Sequence[MergedClaim], places: Places) -> list[Child]:
    if not studies:
        return []
    words = (
        "A claim is a sentence of a paper that the measurements were asked about. The paper's protocol fixes "
        "how many tests are judged together; a test that two experiments make counts once."
    )
    return [
        element("h2", "Experiments of the papers"),
        element("p", words),
        verdict_marks(verdict_counts(claims)) if claims else None,
        *(_paper(key, studies, claims, places) for key in in_order(study.paper for study in studies)),
    ]


def _paper(
    key: str, studies: Sequence[StudyResult], claims: Sequence[MergedClaim], places: Places
) -> list[Child]:
    mine = [study for study in studies if study.paper == key]
    whole = [study for study in mine if not study.is_variant]
    missing = [f"{study.what}, scale {study.scale}: {reason}" for study in whole for reason in study.missing]
    return [
        element("h3", paper_name(key), class_="paper-name"),
        element("div", [_card(study, claims, places) for study in whole], class_="cards") if whole else None,
        *_variants([study for study in mine if study.is_variant], places),
        [
            element("h4", "Not reproduced"),
            element("ul", [element("li", reason) for reason in missing]),
        ]
        if missing
        else None,
    ]


def _variants(variants: Sequence[StudyResult], places: Places) -> list[Child]:
    """Return a list of the variants, without their verdicts."""
    if not variants:
        return []
    lines = [
        element(
            "li",
            link(study.heading, places.study(study), places.root),
            f", scale {study.scale}: {' '.join(study.asked) or study.command}",
            data_fact="variant",
        )
        for study in variants
    ]
    return [element("h4", "Variants, not counted"), element("ul", lines)]


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
