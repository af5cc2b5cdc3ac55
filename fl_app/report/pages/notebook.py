"""A run in the cell of a notebook."""

from __future__ import annotations

from pathlib import Path

from fl_app.report.charts.tiles import png_uri
from fl_app.report.markup import Html, element
from fl_app.report.pages.summary import summary_lines
from fl_app.results import load_run
from fl_app.storage.plain_folder import read_small

GALLERY = "gallery.png"


def notebook_view(run_dir: Path) -> Html:
    """Return the summary and the gallery of a run as HTML without a style sheet or anything to load."""
    run, picture = load_run(run_dir), run_dir / GALLERY
    gallery = None
    if picture.is_file():
        gallery = element(
            "img",
            src=png_uri(read_small(picture)),
            alt="originals beside the images that attacks recovered",
            style="max-width: 100%; background: white",
        )
    return element(
        "div",
        element("p", element("strong", f"defense: {run.defense}"), f", status: {run.status or 'not known'}"),
        element("ul", [element("li", line) for line in summary_lines(run_dir)]),
        gallery,
        element("p", "report: ", element("code", str(run_dir / "report.html"))),
        data_run=str(run_dir),
    )
