"""Gallery on a page: a grid of pictures with as many rows as fit."""

from __future__ import annotations

from fl_app.report.charts.tiles import tile_uri
from fl_app.report.data.gallery import GalleryRow, Shot, column_names, gallery_blocks
from fl_app.report.data.outcome import Outcome
from fl_app.report.markup import Child, Html, element

_PICTURE_BUDGET = 450_000
"""Characters of gallery pictures in one page, so that a page stays small enough to be mailed."""


def gallery_grids(rows: list[GalleryRow]) -> tuple[list[Html], int]:
    """Return the pictures, and how many rows of them there was room for."""
    grids: list[Html] = []
    shown = 0
    blocks = gallery_blocks(rows)
    for block in blocks:
        columns = column_names(block)
        cells: list[Child] = [element("div", name, class_="head") for name in ["original", *columns]]
        spent = 0
        for position, row in enumerate(block):
            line = [
                _picture(
                    Shot(row.original, row.title, Outcome.UNKNOWN),
                    f"{row.title}: original not sent for audit",
                    row=position,
                ),
                *(_picture(row.shots.get(name), "no picture", name, row=position) for name in columns),
            ]
            spent += sum(map(len, line))
            if position and spent > _PICTURE_BUDGET / len(blocks):
                break
            cells.extend(line)
            shown += 1
        grid = element("div", cells, class_="gallery", style=f"--columns: {1 + len(columns)}")
        grids.append(element("div", grid, class_="panel sideways"))
    return grids, shown


def _picture(shot: Shot | None, missing: str, column: str = "", *, row: int) -> Html:
    if shot is None or shot.tile is None:
        return element("div", missing, class_="missing")
    return element(
        "figure",
        element("img", class_="tile", src=tile_uri(shot.tile), alt=f"{column or 'original'}: {shot.caption}"),
        element("figcaption", f"{shot.outcome.icon} {shot.caption}" if shot.worst else shot.caption),
        class_=f"worst {shot.outcome.look}" if shot.worst else None,
        data_outcome=shot.outcome.value if column else None,
        data_row=str(row),
        data_side="recovered" if column else "original",
    )
