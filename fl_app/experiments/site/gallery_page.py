"""Page of leaked images: the worst leak of every configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fl_app.experiments.site.places import Places, link
from fl_app.report.data.comparison import ComparisonRow
from fl_app.report.data.gallery import gallery_rows
from fl_app.report.markup import Child, Html, element
from fl_app.report.pages.gallery_grid import gallery_grids

_ROOM = 4_000_000
"""Maximum total size of the pictures on one page in characters, for phones."""


def gallery_body(rows: Sequence[ComparisonRow], places: Places) -> list[Child]:
    """Return the content of the page."""
    return [
        element("p", "Gallery", class_="eyebrow"),
        element("h1", "What the attacker saw"),
        gallery_part(rows, places, places.root) or element("p", "No run has pictures of an attack."),
    ]


def gallery_part(rows: Sequence[ComparisonRow], places: Places, base: Path) -> list[Child]:
    """Return a box for each configuration whose attacks left pictures; nothing if none did."""
    found = [box for row in rows if (box := _box(row, places, base))]
    shown, spent = 0, 0
    for box in found:
        spent += len(box)
        shown += 1 if not shown or spent <= _ROOM else 0
    if not found:
        return []
    left = len(found) - shown
    return [
        element(
            "p",
            "Of every configuration the image that came closest to its original, in its first seed; a frame "
            "marks the closest of a column. Higher PSNR and SSIM mean closer.",
        ),
        element("p", f"For want of room {left} more are in the reports of the runs.") if left else None,
        element("div", found[:shown], class_="stack"),
    ]


def _box(row: ComparisonRow, places: Places, base: Path) -> Html | None:
    pictures = gallery_rows(row.runs[0])[:1]
    if not pictures:
        return None
    report = places.report(row.runs[0].folder)
    words = f"{row.defense}, {row.model} on {row.data}"
    grids, _ = gallery_grids(pictures)
    return element(
        "section",
        element("h3", link(words, report, base) if report else words),
        element("p", row.differs, class_="muted") if row.differs else None,
        grids,
    )
