"""The gallery: for each image of an attacked batch, the original beside what each attack made of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from fl_app.report.records import Attack, Run
from fl_app.report.scores import PSNR, SSIM, closest_image, worst_score
from fl_app.report.tiles import read_tiles

UPDATES = {
    "undefended": "without the defense",
    "defended": "with the defense",
    "trained": "what was trained on",
}
UPDATES_OF_NONE = {"undefended": "raw update", "defended": "as sent, no defense"}


@dataclass(frozen=True)
class Shot:
    """One reconstruction of one image."""

    tile: Image.Image | None
    caption: str
    sent: bool
    """Whether it was made from the update that travelled."""
    worst: bool
    """Whether no other image came closer to its original in this column of the whole run."""


@dataclass(frozen=True)
class GalleryRow:
    """One image of one attacked batch."""

    title: str
    original: Image.Image | None
    shots: dict[str, Shot]
    """By column, such as `with the defense`."""


def gallery_rows(run: Run) -> list[GalleryRow]:
    """Return the rows of the gallery, the batches that leaked most first."""
    cases: dict[tuple[object, ...], list[Attack]] = {}
    for attack in run.attacks:
        if attack.images is not None:
            cases.setdefault((attack.name, attack.round, attack.client), []).append(attack)
    compared = ("undefended", "defended")
    worst = {_spot(found) for update in compared if (found := closest_image(of_update(run, update)))}
    ordered = sorted(cases.values(), key=_leaked_most)
    return [row for case in ordered for row in _case_rows(run, case, worst)]


def of_update(run: Run, update: str) -> list[Attack]:
    """Return the attacks on one kind of update, `undefended` or `defended`."""
    return [attack for attack in run.attacks if attack.update == update]


def update_words(run: Run, attack: Attack) -> str:
    """Return which update was attacked, in plain words."""
    words = UPDATES_OF_NONE if run.defense == "none" else UPDATES
    return words.get(attack.update, attack.update)


def column_names(rows: Iterable[GalleryRow]) -> list[str]:
    """Return the columns that any of the rows has: without the defense first, adaptive attackers last."""
    names = dict.fromkeys(name for row in rows for name in row.shots)
    raw = (UPDATES["undefended"], UPDATES_OF_NONE["undefended"])
    return sorted(names, key=lambda name: (not name.startswith(raw), name))


def picture_caption(attack: Attack, position: int) -> str:
    """Return the scores of one image, as they stand below it."""
    scores = [
        f"{prefix}{metric.show(value)}"
        for metric, prefix in ((PSNR, ""), (SSIM, "SSIM "))
        if (value := _at(getattr(attack, metric.name), position)) is not None
    ]
    return ", ".join(scores) or "not scored"


def plot_gallery(rows: list[GalleryRow], path: Path, *, limit: int = 8) -> None:
    """Write the first rows as one picture: original, then a column for each kind of update."""
    shown = rows[:limit]
    columns = column_names(shown)
    width, height = 0.5 + 1.75 * (1 + len(columns)), 0.35 + 2.05 * len(shown)
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white", layout="constrained")
    grid = figure.subplots(len(shown), 1 + len(columns), squeeze=False)
    for line, row in zip(grid, shown, strict=True):
        cells = [Shot(row.original, row.title, sent=False, worst=False)]
        cells += [row.shots.get(name, Shot(None, "", sent=False, worst=False)) for name in columns]
        for axes, shot in zip(line, cells, strict=True):
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_xlabel(shot.caption, fontsize=7.5, color="#444444", parse_math=False)
            if shot.tile is None:
                axes.text(0.5, 0.5, "no picture", ha="center", va="center", fontsize=8, color="#777777")
            else:
                axes.imshow(shot.tile.convert("RGB"), interpolation="nearest")
    for axes, name in zip(grid[0], ["original", *columns], strict=True):
        axes.set_title(name.replace(", ", ",\n"), fontsize=9.5, fontweight="bold", parse_math=False)
    figure.savefig(path)


def _leaked_most(case: list[Attack]) -> float:
    sent = [attack for attack in case if attack.update == "defended"]
    value = worst_score(PSNR, sent or case)
    return float("inf") if value is None else -value


def _spot(found: tuple[Attack, int]) -> tuple[int, int]:
    # by identity: two entries of a file may be equal
    return id(found[0]), found[1]


def _case_rows(run: Run, case: list[Attack], worst: set[tuple[int, int]]) -> list[GalleryRow]:
    originals = next((tiles for attack in case if (tiles := read_tiles(attack.truth))), [])
    strips = [(attack, read_tiles(attack.images)) for attack in case]
    count = len(originals) or max((len(tiles) for _, tiles in strips), default=0)
    rows = []
    for position in range(count):
        shots: dict[str, Shot] = {}
        for attack, tiles in strips:
            shots[_free_name(_column(run, attack), shots)] = Shot(
                tile=tiles[position] if position < len(tiles) else None,
                caption=picture_caption(attack, position),
                sent=attack.update == "defended",
                worst=(id(attack), position) in worst,
            )
        rows.append(GalleryRow(_title(case[0], position, count), _tile(originals, position), shots))
    return rows


def _column(run: Run, attack: Attack) -> str:
    name = update_words(run, attack)
    return f"{name}, adaptive attacker" if attack.adaptive else name


def _free_name(name: str, taken: dict[str, Shot]) -> str:
    repeats = sum(other == name or other.startswith(f"{name} #") for other in taken)
    return f"{name} #{repeats + 1}" if repeats else name


def _title(attack: Attack, position: int, count: int) -> str:
    parts = [attack.name]
    parts += [] if attack.round is None else [f"round {attack.round}"]
    parts += [] if attack.client is None else [f"client {attack.client}"]
    return ", ".join(parts + ([f"image {position + 1}"] if count > 1 else []))


def _tile(tiles: list[Image.Image], position: int) -> Image.Image | None:
    return tiles[position] if position < len(tiles) else None


def _at(scores: tuple[float | None, ...], position: int) -> float | None:
    return scores[position] if position < len(scores) else None
