"""Page of one experiment: our numbers beside the paper's, verdicts, figures and the command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fl_app.experiments.papers import paper_name
from fl_app.experiments.site.merged_claims import MergedClaim
from fl_app.experiments.site.places import Places, link
from fl_app.experiments.site.verdict_words import verdict_mark
from fl_app.experiments.studies.claims import LEVEL
from fl_app.experiments.studies.page import variant_banner
from fl_app.experiments.studies.table import SIGNS, show_value
from fl_app.report.charts.tiles import png_uri
from fl_app.report.data.formats import DASH
from fl_app.report.markup import Child, Html, details, element, table
from fl_app.report.pages.panels import panel
from fl_app.results.study import (
    HOLDS,
    REFUTED,
    Place,
    StudyLine,
    StudyResult,
)

_ARROWS = {"lower": " ↓", "higher": " ↑"}


def study_body(
    study: StudyResult,
    claims: Sequence[MergedClaim],
    places: Places,
    files: dict[Path, Path],
    gallery: Child,
) -> list[Child]:
    """Return the content of the page; ``files`` maps the experiment's files to their copies."""
    base = places.study(study).parent
    facts = [f"scale {study.scale}", f"measured {study.measured}"]
    facts += [f"seeds {', '.join(map(str, study.seeds))}"] if study.seeds else []
    return [
        element("p", f"{paper_name(study.paper)}, {study.what}", class_="eyebrow"),
        element("h1", study.title or study.what),
        element("ul", [element("li", fact) for fact in facts], class_="chips"),
        _banners(study),
        [element("p", note, class_="muted") for note in study.notes],
        _claims(study, claims),
        _table(study, base, files),
        _figures(study, base, files),
        gallery,
        _list("Not reproduced", study.missing),
        _cells(study, places, base),
    ]


def _banners(study: StudyResult) -> list[Child]:
    unfinished = "Not all of its runs are finished: what they would say is missing."
    return [
        variant_banner(study.asked) if study.is_variant else None,
        element("div", element("p", study.honest), class_="banner") if study.honest else None,
        None if study.finished else element("div", element("p", unfinished), class_="banner failed"),
    ]


def _claims(study: StudyResult, claims: Sequence[MergedClaim]) -> list[Child]:
    if not claims:
        return []
    words = (
        "A claim is decided if its two-sided p, times the number of tests in its family, is at most "
        f"{LEVEL}. The protocol {study.protocol or DASH} of the paper fixes the families."
    )
    return [
        element("h2", "Claims"),
        element("p", words, class_="muted"),
        element("div", [_claim(claim) for claim in claims], class_="cards"),
    ]


def _claim(merged: MergedClaim) -> Html:
    tone = {HOLDS: "shut", REFUTED: "open"}.get(merged.claim.verdict, "")
    return element(
        "section",
        element("h3", merged.claim.text),
        element("p", verdict_mark(merged.claim.verdict), f" {merged.claim.role}"),
        element("p", merged.claim.words, class_="muted"),
        class_=f"card {tone}".strip(),
    )


def _table(study: StudyResult, base: Path, files: dict[Path, Path]) -> list[Child]:
    if not study.table.rows:
        return []
    names = max(len(line.name) for line in study.table.rows)
    rows = [[*_title(line, names), *_places(line)] for line in study.table.rows]
    absent = [
        f"{' '.join(line.name)}, {column}: {place.missing}"
        for line in study.table.rows
        for column, place in zip(study.table.columns, line.ours, strict=True)
        if place.missing
    ]
    copy = files.get(study.folder / "table.csv")
    return [
        element("h2", "Table"),
        element(
            "p",
            "Ours, mean ± standard deviation over n, and below it the paper's number. An arrow says which "
            "way is better. ",
            link("As CSV", copy, base) if copy else None,
            class_="muted",
        ),
        table([*[""] * names, *study.table.columns], rows, words=names),
        details("What is missing, and why", element("ul", [element("li", words) for words in absent]))
        if absent
        else None,
    ]


def _title(line: StudyLine, names: int) -> list[Child]:
    words = list(line.name) or [""]
    words[-1] += _ARROWS.get(line.better, "")
    return [*words, *[""] * (names - len(words))]


def _places(line: StudyLine) -> list[Child]:
    return [
        element(
            "span",
            _ours(line, place),
            element("small", f"n = {place.n} {place.unit}{'' if place.n == 1 else 's'}") if place.n else None,
            None
            if paper is None
            else element("small", f"paper {show_value(line, paper)}", class_="paper-number"),
            title=place.missing,
        )
        for place, paper in zip(line.ours, line.paper, strict=True)
    ]


def _ours(line: StudyLine, place: Place) -> Html:
    if place.words:
        return element("span", place.words)
    spread = "" if place.sd is None or place.mean is None else f" ± {show_value(line, place.sd)}"
    mean = show_value(line, place.mean)
    return element("b", SIGNS[place.mark] + (mean.removesuffix(" %") if spread else mean) + spread)


def _figures(study: StudyResult, base: Path, files: dict[Path, Path]) -> list[Child]:
    panels = [
        panel(
            figure.title,
            element("img", class_="chart paper", src=png_uri(picture.read_bytes()), alt=figure.title),
            element(
                "p",
                [
                    [link(kind, files[file], base), " "]
                    for kind, file in (("PNG", picture), ("SVG", study.file(figure.svg)))
                    if file is not None
                ],
                class_="muted",
            ),
        )
        for figure in study.figures
        if (picture := study.file(figure.file)) is not None
    ]
    return [element("h2", "Figures"), element("div", panels, class_="charts loose figures")] if panels else []


def _list(title: str, lines: Sequence[str]) -> list[Child]:
    return [element("h2", title), element("ul", [element("li", line) for line in lines])] if lines else []


def _cells(study: StudyResult, places: Places, base: Path) -> list[Child]:
    rows: list[list[Child]] = []
    for cell in study.cells:
        report = places.report(study.folder_of(cell))
        name = link(cell.name, report, base) if report else cell.name
        rows.append([name, cell.part, cell.status, cell.reason or ""])
    versions = [[name, version] for name, version in study.versions.items()]
    return [
        element("h2", "How it was run"),
        element("pre", element("code", study.command)) if study.command else None,
        details(f"{len(rows)} cells and their reports", table(["cell", "part", "status", ""], rows, words=4))
        if rows
        else None,
        details("Versions", table(["package", "version"], versions, words=2)) if versions else None,
    ]
