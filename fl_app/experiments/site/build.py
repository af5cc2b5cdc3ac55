"""Build the site: write all pages into a new folder that then replaces the old one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from fl_app.experiments.site.claims_page import claims_body
from fl_app.experiments.site.found_studies import find_studies
from fl_app.experiments.site.gallery_page import gallery_body, gallery_part
from fl_app.experiments.site.index_page import index_body
from fl_app.experiments.site.merged_claims import MergedClaim, claims_json, merge_claims
from fl_app.experiments.site.places import Places, link, plan_places
from fl_app.experiments.site.study_page import study_body
from fl_app.report import compare_runs, comparison_rows, find_runs, write_frontier, write_report
from fl_app.report.data.comparison import ComparisonRow
from fl_app.report.markup import Child, element
from fl_app.report.pages.frontier_section import frontier_section
from fl_app.results import RESULT
from fl_app.results.study import STUDY, StudyResult
from fl_app.storage.plain_folder import entries_named

_MARK = ".fl-app-site"
"""File that marks a folder as a site, which may be replaced."""


def build_site(paths: Sequence[Path], out: Path, say: Callable[[str], None] = lambda line: None) -> Path:
    """Write the site of all experiments and runs below ``paths`` to ``out``, and return its first page.

    A non-empty folder that is not a site is refused. The old site stays until the new one is complete.
    """
    if out.exists() and not (out / _MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: expected an empty folder or a site to replace, got something else")
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path}: expected a folder with experiments or runs; it does not exist")
    studies = find_studies(paths)
    runs = find_runs([path for path in paths if entries_named(path, RESULT)])
    if not studies and not runs:
        raise FileNotFoundError(f"expected a {STUDY} or a {RESULT} below {', '.join(map(str, paths))}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as draft:
        root = Path(draft) / "new"
        root.mkdir()
        (root / _MARK).touch()
        _write_all(studies, runs, plan_places(root, studies, runs), say)
        if out.exists():
            out.rename(Path(draft) / "old")
        root.rename(out)
    return out / "index.html"


def _write_all(
    studies: Sequence[StudyResult], runs: Sequence[Path], places: Places, say: Callable[[str], None]
) -> None:
    for run in runs:
        _copy_report(run, places, say)
    rows = comparison_rows(runs)
    claims = merge_claims(studies)
    for study in studies:
        _write_study(study, claims, rows, places)
        say(f"experiment: {study.name}, scale {study.scale}")
    root = places.root
    if runs:
        page = root / "comparison.html"
        reports = {run: _report(run, places) for run in runs}
        compare_runs(runs, page, above=places.links(page), reports=reports)
    has_frontier = _write_frontier(runs, rows, places)
    places.write(root / "gallery.html", "Gallery", gallery_body(rows, places))
    places.write(root / "claims.html", "Claims", claims_body(claims, places))
    (root / "claims.json").write_text(claims_json(claims), encoding="utf-8")
    body = index_body(studies, claims, rows, places, root / "frontier.html" if has_frontier else None)
    places.write(root / "index.html", "Reports", body)


def _report(run: Path, places: Places) -> Path:
    return places.reports[run.resolve()]


def _copy_report(run: Path, places: Places, say: Callable[[str], None]) -> None:
    report = run / "report.html"
    if not report.is_file() or report.stat().st_mtime < (run / RESULT).stat().st_mtime:
        write_report(run)
        say(f"report: {report}")
    copy = _report(run, places)
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(report, copy)


def _write_study(
    study: StudyResult, claims: Sequence[MergedClaim], rows: Sequence[ComparisonRow], places: Places
) -> None:
    page = places.study(study)
    mine = [MergedClaim(study, claim) for claim in study.claims]
    cells = {study.folder_of(cell) for cell in study.cells}
    of_cells = [row for row in rows if any(run.folder.resolve() in cells for run in row.runs)]
    pictures = gallery_part(of_cells, places, page.parent)
    gallery = [element("h2", "What the attacker saw"), *pictures] if pictures else None
    files = _copy_files(study, page.with_suffix(""))
    places.write(page, study.heading, study_body(study, mine, places, files, gallery))


def _copy_files(study: StudyResult, folder: Path) -> dict[Path, Path]:
    table = study.folder / "table.csv"
    names = [name for figure in study.figures for name in (figure.file, figure.svg)]
    named = [file for name in names if (file := study.file(name)) is not None]
    files = [*named, *([table] if table.is_file() else [])]
    copies: dict[Path, Path] = {}
    for number, file in enumerate(files, 1):
        # numbered, because files of different folders may share a name
        copies[file] = folder / f"{number}{file.suffix.lower()}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copies[file])
    return copies


def _write_frontier(runs: Sequence[Path], rows: list[ComparisonRow], places: Places) -> bool:
    """Write the page and its pictures; return whether there is a frontier."""
    section = frontier_section(rows)
    root = places.root
    body: list[Child] = [element("p", "Frontier", class_="eyebrow")]
    if section:
        png, svg = write_frontier(runs, root / "frontier.png")
        files = element("p", "As a picture: ", link("PNG", png, root), ", ", link("SVG", svg, root), ".")
        body += [element("h1", "Which defense is worth its price"), *section, files]
    else:
        body += [
            element("h1", "No frontier yet"),
            element("p", "No configuration has both an accuracy and an attack whose images were scored."),
        ]
    places.write(root / "frontier.html", "Frontier", body)
    return bool(section)
