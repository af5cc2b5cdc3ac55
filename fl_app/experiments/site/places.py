"""Paths and navigation of the site."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fl_app.report.markup import Child, Html, element, page, relative_link
from fl_app.results.study import StudyResult

_PAGES = {
    "index.html": "Experiments",
    "frontier.html": "Frontier",
    "claims.html": "Claims",
    "gallery.html": "Gallery",
    "comparison.html": "All runs",
}


@dataclass(frozen=True)
class Places:
    """The files of one site."""

    root: Path
    studies: Mapping[Path, Path]
    """Page of each experiment's folder."""
    reports: Mapping[Path, Path]
    """Report of each run's folder."""

    def study(self, study: StudyResult) -> Path:
        """Return the page of an experiment."""
        return self.studies[study.folder]

    def report(self, run: Path) -> Path | None:
        """Return the report of a run; None if the site has none."""
        return self.reports.get(run.resolve())

    def links(self, path: Path) -> Html:
        """Return the navigation from a page to the main ones."""
        here = path.relative_to(self.root).as_posix()
        return element(
            "nav",
            [
                element(
                    "a",
                    name,
                    href=relative_link(self.root / file, path.parent),
                    aria_current="page" if file == here else None,
                )
                for file, name in _PAGES.items()
                if file != "comparison.html" or self.reports
            ],
        )

    def write(self, path: Path, title: str, body: Child) -> None:
        """Write a page with links to the others above its content."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(title, [self.links(path), body], wide=True), encoding="utf-8")


def plan_places(root: Path, studies: Sequence[StudyResult], runs: Sequence[Path]) -> Places:
    """Assign a distinct path to every experiment and every run."""
    pages: dict[Path, Path] = {}
    for study in studies:
        name = _free(
            "-".join([study.name, study.scale, *(["variant"] if study.is_variant else [])]),
            {page.stem for page in pages.values()},
        )
        pages[study.folder] = root / "studies" / f"{name}.html"
    folders = [run.resolve() for run in runs]
    base = os.path.commonpath([folder.parent for folder in folders]) if folders else ""
    reports = {folder: root / "runs" / os.path.relpath(folder, base) / "report.html" for folder in folders}
    return Places(root, pages, reports)


def link(words: Child, target: Path, base: Path) -> Html:
    """Return a link from a page in the folder ``base``."""
    return element("a", words, href=relative_link(target, base))


def _free(name: str, taken: set[str]) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "study"
    return next(
        candidate
        for number in range(1, len(taken) + 2)
        if (candidate := plain if number == 1 else f"{plain}-{number}") not in taken
    )
