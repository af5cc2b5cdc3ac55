"""The gallery: for each image of an attacked batch, the original beside what each attack made of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from fl_app.report.charts.tiles import read_tiles
from fl_app.report.data.attack_settings import differing_settings
from fl_app.report.data.outcome import Outcome, grade_picture
from fl_app.report.data.scores import PSNR, SSIM, closest_image, worst_score
from fl_app.report.data.update_kinds import as_sent, is_raw, is_sent, of_update, update_words
from fl_app.results import Attack, Run


@dataclass(frozen=True)
class Shot:
    """One reconstruction of one image."""

    tile: Image.Image | None
    caption: str
    outcome: Outcome
    """How far the picture can be recognised."""
    worst: bool = False
    """Whether no other image came closer to its original in this column of the whole run."""


@dataclass(frozen=True)
class GalleryRow:
    """One image of one attacked batch."""

    title: str
    original: Image.Image | None
    shots: dict[str, Shot]
    """Pictures by column, such as `with the defense`."""
    of_sum: bool = False
    """Whether it was rebuilt from the sum of several clients."""


def gallery_rows(run: Run) -> list[GalleryRow]:
    """Return the rows of the gallery: of sums before those of single clients, and what leaked most first."""
    cases: dict[tuple[object, ...], list[Attack]] = {}
    for attack in run.comparisons:
        if attack.file("images") is not None:
            case = (
                attack.name,
                attack.settings_hash,
                attack.round,
                attack.sender,
                _is_sum(attack),
                attack.summed,
            )
            cases.setdefault(case, []).append(attack)
    compared = (of_update(run, "undefended"), as_sent(run))
    worst = {_spot(found) for attacks in compared if (found := closest_image(attacks))}
    ordered = sorted(cases.values(), key=lambda case: (not _is_sum(case[0]), _leaked_most(case)))
    settings_of = differing_settings(run.attacks)
    return [row for case in ordered for row in _case_rows(run, case, worst, settings_of(case[0]))]


def gallery_blocks(rows: Iterable[GalleryRow]) -> list[list[GalleryRow]]:
    """Return rows of sums and rows of single clients apart: they have no column in common."""
    return [list(block) for _, block in itertools.groupby(rows, key=lambda row: row.of_sum)]


def column_names(rows: Iterable[GalleryRow]) -> list[str]:
    """Return the columns that any of the rows has: without the defense first, adaptive attackers last."""
    names = dict.fromkeys(name for row in rows for name in row.shots)
    return sorted(names, key=lambda name: (not is_raw(name), name))


def picture_caption(attack: Attack, position: int) -> str:
    """Return the scores of one image, for its caption."""
    scores = [
        f"{prefix}{metric.show(value)}"
        for metric, prefix in ((PSNR, ""), (SSIM, "SSIM "))
        if (value := _at(attack.scores(metric.name), position)) is not None
    ]
    return ", ".join(scores) or "not scored"


def plot_gallery(rows: list[GalleryRow], path: Path, *, limit: int = 8) -> None:
    """Write the first rows as one picture: original, then a column for each kind of update."""
    blocks = gallery_blocks(rows)
    blocks = [block[: max(1, limit // len(blocks))] for block in blocks]
    columns = [column_names(block) for block in blocks]
    count, widest = sum(map(len, blocks)), max(map(len, columns))
    width, height = 0.5 + 1.75 * (1 + widest), 0.35 * len(blocks) + 2.05 * count
    figure = Figure(figsize=(width, height), dpi=150, facecolor="white", layout="constrained")
    grid = iter(figure.subplots(count, 1 + widest, squeeze=False))
    for block, names in zip(blocks, columns, strict=True):
        lines = list(itertools.islice(grid, len(block)))
        _draw_block(block, names, lines)
    figure.savefig(path)


def _draw_block(block: list[GalleryRow], columns: list[str], lines: Sequence[Sequence[Axes]]) -> None:
    for line, row in zip(lines, block, strict=True):
        cells = [Shot(row.original, row.title, Outcome.UNKNOWN)]
        cells += [row.shots.get(name, Shot(None, "", Outcome.UNKNOWN)) for name in columns]
        for axes in line[len(cells) :]:
            axes.set_axis_off()
        for axes, shot in zip(line, cells, strict=False):
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            axes.set_xlabel(shot.caption, fontsize=7.5, color="#444444", parse_math=False)
            if shot.tile is None:
                axes.text(0.5, 0.5, "no picture", ha="center", va="center", fontsize=8, color="#777777")
            else:
                axes.imshow(shot.tile.convert("RGB"), interpolation="nearest")
    for axes, name in zip(lines[0], ["original", *columns], strict=False):
        axes.set_title(name.replace(", ", ",\n"), fontsize=9.5, fontweight="bold", parse_math=False)


def _is_sum(attack: Attack) -> bool:
    return attack.update == "sum"


def _leaked_most(case: list[Attack]) -> float:
    sent = [attack for attack in case if is_sent(attack)]
    value = worst_score(PSNR, sent or case)
    return float("inf") if value is None else -value


def _spot(found: tuple[Attack, int]) -> tuple[int, int]:
    # by identity: two entries of a file may be equal
    return id(found[0]), found[1]


def _case_rows(run: Run, case: list[Attack], worst: set[tuple[int, int]], settings: str) -> list[GalleryRow]:
    originals = next((tiles for attack in case if (tiles := read_tiles(attack.file("truth")))), [])
    strips = [(attack, read_tiles(attack.file("images"))) for attack in case]
    count = len(originals) or max((len(tiles) for _, tiles in strips), default=0)
    rows = []
    for position in range(count):
        shots: dict[str, Shot] = {}
        for attack, tiles in strips:
            shots[_free_name(_column(run, attack), shots)] = Shot(
                tile=tiles[position] if position < len(tiles) else None,
                caption=picture_caption(attack, position),
                outcome=grade_picture(attack, position),
                worst=(id(attack), position) in worst,
            )
        title = _title(case[0], settings, position, count)
        rows.append(GalleryRow(title, _tile(originals, position), shots, of_sum=_is_sum(case[0])))
    return rows


def _column(run: Run, attack: Attack) -> str:
    # the original's caption has the sum's number of clients, which may differ between rounds
    name = "from the sum" if _is_sum(attack) else update_words(run, attack)
    return f"{name}, adaptive attacker" if attack.adaptive else name


def _free_name(name: str, taken: dict[str, Shot]) -> str:
    repeats = sum(other == name or other.startswith(f"{name} #") for other in taken)
    return f"{name} #{repeats + 1}" if repeats else name


def _title(attack: Attack, settings: str, position: int, count: int) -> str:
    parts = [attack.name, *([settings] if settings else [])]
    parts += [] if attack.round is None else [f"round {attack.round}"]
    parts += [f"{attack.summed or 'all'} clients"] if _is_sum(attack) else []
    parts += [] if attack.sender is None else [f"client {attack.sender}"]
    return ", ".join(parts + ([f"image {position + 1}"] if count > 1 else []))


def _tile(tiles: list[Image.Image], position: int) -> Image.Image | None:
    return tiles[position] if position < len(tiles) else None


def _at(scores: Sequence[float | None], position: int) -> float | None:
    return scores[position] if position < len(scores) else None
