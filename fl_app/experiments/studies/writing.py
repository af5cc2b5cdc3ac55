"""Output folder of a study: study.json, table, claims, figures and the page."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.experiments.studies.claims import as_json
from fl_app.experiments.studies.figures import Drawn, draw
from fl_app.experiments.studies.measured import Measured
from fl_app.experiments.studies.page import Findings, study_page
from fl_app.experiments.studies.table import lines_json, table_csv, table_markdown
from fl_app.report.charts.canvas import LIGHT, png_bytes, svg_bytes


def write_study(found: Findings, folder: Path) -> Path:
    """Write everything into ``folder`` and return the page; study.json, which names the rest, comes last."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = [
        entry for number, drawn in enumerate(found.figures, 1) if (entry := _figure(drawn, number, folder))
    ]
    claims = [as_json(verdict) for verdict in found.verdicts]
    _write(folder / "table.md", table_markdown(found.study, found.lines))
    _write(folder / "table.csv", table_csv(found.study, found.lines))
    _write(folder / "claims.json", _json(claims))
    page = folder / "study.html"
    _write(page, study_page(found, folder))
    _write(folder / "study.json", _json(_content(found, folder, figures, claims)))
    return page


def _content(
    found: Findings, folder: Path, figures: Sequence[Mapping[str, str]], claims: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    study = found.study
    return {
        "name": study.name,
        "paper": study.paper,
        "what": study.what,
        "title": study.title,
        "scale": study.scale,
        "honest": study.honest,
        "missing": list(study.missing),
        "notes": list(study.notes),
        "command": found.command,
        "seeds": found.seeds,
        "cells": [
            {
                "folder": Path(os.path.relpath(cell.folder, folder)).as_posix(),
                "part": cell.planned.part,
                "name": cell.planned.name,
                "status": cell.status,
                "reason": cell.reason,
                "overrides": cell.planned.overrides,
            }
            for cell in found.cells
        ],
        "table": {"columns": list(study.columns), "rows": lines_json(found.lines)},
        "figures": list(figures),
        "claims": list(claims),
        "versions": _versions(found.cells),
        "finished": found.finished,
    }


def _figure(drawn: Drawn, number: int, folder: Path) -> dict[str, str] | None:
    if drawn.empty:
        return None
    figure = draw(drawn, LIGHT)
    names = {"file": f"figure{number}.png", "svg": f"figure{number}.svg"}
    (folder / names["file"]).write_bytes(png_bytes(figure))
    (folder / names["svg"]).write_bytes(svg_bytes(figure))
    return {**names, "title": drawn.order.title, "kind": drawn.order.kind}


def _versions(cells: Sequence[Measured]) -> dict[str, str]:
    """Return the versions that the cells were run with; several where they differ."""
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        for package, version in (cell.run.versions if cell.run is not None else {}).items():
            found.setdefault(package, {})[version] = None
    return {package: ", ".join(versions) for package, versions in found.items()}


def _json(value: Any) -> str:
    return json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    """Return ``value`` as JSON knows it: a number that is none becomes null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _write(path: Path, text: str) -> None:
    """Write a file at once or not at all."""
    draft = path.with_name(f"{path.name}.part")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)
