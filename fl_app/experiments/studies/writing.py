"""Output folder of a study: study.json, table, claims, figures and the page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fl_app.experiments.studies.claims import study_claim
from fl_app.experiments.studies.figures import Drawn, draw
from fl_app.experiments.studies.measured import Measured
from fl_app.experiments.studies.page import Findings, study_page
from fl_app.experiments.studies.table import study_table, table_csv, table_markdown
from fl_app.experiments.studies.units import units_of
from fl_app.report.charts.canvas import LIGHT, png_bytes, svg_bytes
from fl_app.results import write_json, write_text
from fl_app.results.study import STUDY, StudyCell, StudyFigure, StudyResult
from fl_app.results.units import write_units


def write_study(found: Findings, folder: Path) -> Path:
    """Write everything into ``folder`` and return the page; study.json, which names the rest, comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = [
        entry for number, drawn in enumerate(found.figures, 1) if (entry := _figure(drawn, number, folder))
    ]
    result = _result(found, folder, figures)
    write_text(folder / "table.md", table_markdown(found.study, found.lines))
    write_text(folder / "table.csv", table_csv(found.study, found.lines))
    write_units(units_of(found.cells), folder)
    write_json(folder / "claims.json", [claim.as_json() for claim in result.claims], ascii_only=False)
    page = folder / "study.html"
    write_text(page, study_page(found, folder))
    write_json(folder / STUDY, result.as_json(), ascii_only=False)
    return page


def _result(found: Findings, folder: Path, figures: list[StudyFigure]) -> StudyResult:
    study = found.study
    result = StudyResult(
        name=study.name,
        paper=study.paper,
        what=study.what,
        title=study.title,
        scale=study.scale,
        honest=study.honest,
        missing=list(study.missing),
        notes=list(study.notes),
        command=found.command,
        seeds=found.seeds,
        cells=[
            StudyCell(
                folder=Path(os.path.relpath(cell.folder, folder)).as_posix(),
                part=cell.planned.part,
                name=cell.planned.name,
                status=cell.status,
                reason=cell.reason,
                overrides=list(cell.planned.overrides),
                config=None if cell.run is None else cell.run.config_hash,
                origin=None if cell.run is None else cell.run.origin,
                versions={} if cell.run is None else cell.run.versions,
            )
            for cell in found.cells
        ],
        table=study_table(study, found.lines),
        figures=figures,
        claims=[study_claim(verdict) for verdict in found.verdicts],
        protocol=found.protocol,
        versions=_versions(found.cells),
        finished=found.finished,
        asked=list(found.asked),
    ).lies_in(folder)
    result.measured_on = result.day_of_runs()
    return result


def _figure(drawn: Drawn, number: int, folder: Path) -> StudyFigure | None:
    if drawn.empty:
        return None
    figure = draw(drawn, LIGHT)
    png, svg = f"figure{number}.png", f"figure{number}.svg"
    (folder / png).write_bytes(png_bytes(figure))
    (folder / svg).write_bytes(svg_bytes(figure))
    return StudyFigure(file=png, svg=svg, title=drawn.order.title, kind=drawn.order.kind)


def _versions(cells: Sequence[Measured]) -> dict[str, str]:
    """Return the software versions of the cells' runs; several where they differ."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for package, version in (cell.run.versions if cell.run is not None else {}).items():
            found.setdefault(package, {})[version] = None
    return {package: ", ".join(versions) for package, versions in found.items()}
