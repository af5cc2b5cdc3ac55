"""Self-contained page of a study: the paper's claims, our findings, and the command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from fl_app.experiments.papers import paper_name
from fl_app.experiments.studies.claims import LEVEL, Verdict
from fl_app.experiments.studies.figures import Drawn, draw
from fl_app.experiments.studies.measured import Measured
from fl_app.experiments.studies.study_file import Study
from fl_app.experiments.studies.table import Line, show_place, show_value, table_remarks
from fl_app.report.charts.canvas import png_bytes
from fl_app.report.markup import Child, Html, details, element, page, table
from fl_app.report.pages.panels import panel, themed_image
from fl_app.results.study import HOLDS, REFUTED


@dataclass(frozen=True)
class Findings:
    """A study and the results of its cells."""

    study: Study
    command: str
    cells: Sequence[Measured]
    lines: Sequence[Line]
    figures: Sequence[Drawn]
    verdicts: Sequence[Verdict]
    protocol: str
    """Hash of the protocol by which the claims were judged."""
    asked: Sequence[str] = ()
    """The parts and overrides that make it a variant; empty: the whole study."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of the cells."""
        return sorted({cell.planned.seed for cell in self.cells})

    @property
    def finished(self) -> bool:
        """True if every cell is finished."""
        return all(cell.run is not None for cell in self.cells)


def study_page(found: Findings, base: Path) -> Html:
    """Return the page; ``base`` is the folder that it will lie in."""
    study = found.study
    body: list[Child] = [
        element("p", f"{paper_name(study.paper)}, {study.what}", class_="eyebrow"),
        element("h1", study.title),
        _chips(found),
        _banner(found),
        _claims(found),
        _table(study, found.lines),
        _figures(found.figures),
        _missing(study),
        _cells(found, base),
    ]
    return page(f"{study.what}: {study.title}", body, wide=True)


def variant_banner(asked: Sequence[str]) -> Html:
    """Return the warning that not the study itself was run."""
    words = (
        f"A variant of the study: {' '.join(asked) or 'other settings than its own'}. Its numbers and "
        "verdicts are not those of the study, and no summary counts them."
    )
    return element("div", element("p", words), class_="banner", data_fact="variant")


def _chips(found: Findings) -> Html:
    done = sum(cell.run is not None for cell in found.cells)
    seeds = ", ".join(map(str, found.seeds))
    words = [f"scale {found.study.scale}", f"{done} of {len(found.cells)} cells", f"seeds {seeds}"]
    holding = sum(verdict.verdict == HOLDS for verdict in found.verdicts)
    words += [f"{holding} of {len(found.verdicts)} claims hold"] if found.verdicts else []
    return element("ul", [element("li", word) for word in words], class_="chips")


def _banner(found: Findings) -> list[Child]:
    parts: list[Child] = [variant_banner(found.asked)] if found.asked else []
    if found.study.honest:
        parts.append(element("div", element("p", found.study.honest), class_="banner"))
    if not found.finished:
        words = "Not all cells are finished: what they would say is missing below."
        parts.append(element("div", element("p", words), class_="banner failed"))
    return [*parts, *(element("p", note, class_="muted") for note in found.study.notes)]


def _claims(found: Findings) -> list[Child]:
    if not found.verdicts:
        return []
    sides = {HOLDS: "shut", REFUTED: "open"}
    cards = [
        element(
            "section",
            element("h2", verdict.claim.text),
            element("p", element("b", verdict.verdict), f", {verdict.role}"),
            element("p", verdict.words, class_="muted"),
            class_=f"card {sides.get(verdict.verdict, '')}".strip(),
            data_verdict=verdict.verdict,
            data_role=verdict.role,
        )
        for verdict in found.verdicts
    ]
    words = (
        f"Protocol {found.protocol}. A claim holds, is refuted or equivalent if the two-sided p, times the "
        f"number of tests in its family, is at most {LEVEL}. Intervals cover 95 % by the same test."
    )
    return [
        element("h2", "Claims"),
        element("p", words, class_="muted"),
        element("div", cards, class_="cards"),
    ]


def _table(study: Study, lines: Sequence[Line]) -> list[Child]:
    if not lines:
        return []
    names = max(len(line.row.name) for line in lines)
    arrows = {"lower": " ↓", "higher": " ↑", "none": ""}
    rows: list[list[Child]] = []
    for line in lines:
        title = [*line.row.name, *[""] * (names - len(line.row.name))]
        title[len(line.row.name) - 1] += arrows[line.row.better]
        places: list[Child] = []
        for number, (place, paper) in enumerate(zip(line.ours, line.row.paper, strict=True)):
            ours = show_place(line.row, place)
            shown = element("b", ours) if number == line.best else ours
            below = None if paper is None else element("small", f"paper {show_value(line.row, paper)}")
            places.append(element("span", shown, below, title=place.missing))
        rows.append([*title, *places])
    header = [*[""] * names, *study.columns]
    remarks = [element("li", remark) for remark in table_remarks(study, lines)]
    return [
        element("h2", "Table"),
        element("p", "Ours, the best of a line in bold; below it the paper's number.", class_="muted"),
        table(header, rows, words=names),
        details("What the numbers are of, and what is missing", element("ul", remarks)) if remarks else None,
    ]


def _figures(figures: Sequence[Drawn]) -> list[Child]:
    panels = [
        panel(
            drawn.order.title,
            themed_image(lambda theme, drawn=drawn: png_bytes(draw(drawn, theme)), drawn.order.title)  # type: ignore[misc]
            if not drawn.empty
            else element("p", "no cell has what is drawn here", class_="muted"),
        )
        for drawn in figures
    ]
    return [element("h2", "Figures"), element("div", panels, class_="charts loose")] if panels else []


def _missing(study: Study) -> list[Child]:
    if not study.missing:
        return []
    return [
        element("h2", "Not reproduced"),
        element("ul", [element("li", reason) for reason in study.missing]),
    ]


def _cells(found: Findings, base: Path) -> list[Child]:
    rows = [[_link(cell, base), cell.status, cell.reason or ""] for cell in found.cells]
    return [
        element("h2", "Cells"),
        element("pre", element("code", found.command)),
        details(f"{len(rows)} cells", table(["cell", "status", ""], rows, words=3)),
    ]


def _link(cell: Measured, base: Path) -> Child:
    report = cell.folder / "report.html"
    if not report.is_file():
        return cell.planned.name
    where = quote(Path(os.path.relpath(report, base)).as_posix())
    return element("a", cell.planned.name, href=where)
