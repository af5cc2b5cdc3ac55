"""The cells of the leakage table as Markdown and as a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from safetensors.torch import load_file

ALIKE = ("none", "outpost", "outpost_late", "fp16", "int8")
"""Defenses against which the adaptive attack is the plain one."""
ATTACKS = {"ig": "IG, LeNet (ReLU)", "dlg": "DLG, LeNet (sigmoid)", "gi": "GI, ConvNet16-BN (trained)"}
MEASURES = "PSNR / SSIM / LPIPS"
SHOWN = 8
"""Images in the gallery."""


@dataclass(frozen=True)
class Cell:
    """One attack in one form on the updates of one defense: numbers of every image."""

    attack: str
    defense: str
    adaptive: bool
    labels: str
    right_labels: float
    psnr: list[float]
    ssim: list[float]
    lpips: list[float]
    path: Path

    @classmethod
    def read(cls, path: Path) -> Cell:
        """Read a file that benchmarks.leakage wrote."""
        content = json.loads(path.read_text())
        return cls(**{name: content[name] for name in cls.__dataclass_fields__ if name != "path"}, path=path)


def format_table(cells: Sequence[Cell], defenses: Sequence[str]) -> str:
    """Return a table for each attack and source of labels, one row a defense."""
    parts = []
    for attack, title in ATTACKS.items():
        for labels in ("granted", "inferred"):
            own = {(c.defense, c.adaptive): c for c in cells if (c.attack, c.labels) == (attack, labels)}
            if own:
                parts.append(_table(f"{title}, labels {labels}", own, defenses, labels))
    return "\n".join(parts)


def _table(title: str, cells: dict[tuple[str, bool], Cell], defenses: Sequence[str], labels: str) -> str:
    number = max(len(cell.psnr) for cell in cells.values())
    lines = [f"**{title}, {number} images**", ""]
    last = " labels right, plain / adaptive |" if labels == "inferred" else ""
    lines += [
        f"| defense | plain: {MEASURES} | worst | adaptive: {MEASURES} | worst | for the user |{last}",
        "|---|---|---|---|---|---|" + ("---|" if last else ""),
    ]
    for defense in defenses:
        plain, adaptive = cells.get((defense, False)), cells.get((defense, True))
        if plain is None:
            continue
        known = _numbers(adaptive) if adaptive else ("the same" if defense in ALIKE else "not run", "")
        row = [defense, *_numbers(plain), *known, _verdict(plain, adaptive)]
        if last:
            both = [f"{100 * cell.right_labels:.0f} %" for cell in (plain, adaptive) if cell is not None]
            row.append(" / ".join(both))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _numbers(cell: Cell) -> tuple[str, str]:
    """Return the means, and those of the image that came out best, each by its own measure."""
    return _three(cell, statistics.mean, statistics.mean), _three(cell, max, min)


def _three(cell: Cell, high: Callable, low: Callable) -> str:
    lpips = f"{low(cell.lpips):.2f}" if cell.lpips else "–"
    return f"{high(cell.psnr):.1f} / {high(cell.ssim):.2f} / {lpips}"


def _verdict(plain: Cell, adaptive: Cell | None) -> str:
    """Return the worse of both forms for the user; an adaptive form that is weaker was tuned too little."""
    means = [statistics.mean(cell.psnr) for cell in (plain, adaptive) if cell is not None]
    under = len(means) == 2 and means[1] < means[0]
    return f"{max(means):.1f} dB{' (adaptive under-tuned)' if under else ''}"


def draw_gallery(cells: Sequence[Cell], defenses: Sequence[str], path: Path) -> None:
    """Draw originals and what each form of IG made of them, one row a defense and form."""
    own = {(c.defense, c.adaptive): c for c in cells if (c.attack, c.labels) == ("ig", "granted")}
    rows = [(d, a) for d in defenses for a in (False, True) if (d, a) in own]
    first = load_file(own[rows[0]].path.with_suffix(".safetensors"))["truth"][:SHOWN]
    strips = [("original", first)]
    for defense, adaptive in rows:
        cell = own[defense, adaptive]
        stored = load_file(cell.path.with_suffix(".safetensors"))
        if not stored["truth"][:SHOWN].equal(first):
            continue  # a late round has other images
        images = stored["images"][:SHOWN]
        form = "adaptive" if adaptive else "plain"
        strips.append((f"{defense}, {form}\n{statistics.mean(cell.psnr):.1f} dB", images))
    figure = Figure(figsize=(1.6 + 0.8 * len(first), 0.82 * len(strips)), dpi=100)
    axes = figure.subplots(len(strips), len(first), squeeze=False)
    for row, (title, images) in zip(axes, strips, strict=True):
        for ax, image in zip(row, images, strict=True):
            ax.imshow(image.permute(1, 2, 0).clamp(0, 1).numpy(), interpolation="nearest")
            ax.set_axis_off()
        row[0].text(-0.15, 0.5, title, transform=row[0].transAxes, ha="right", va="center", fontsize=8)
    figure.subplots_adjust(left=0.2, right=0.99, top=0.99, bottom=0.01, wspace=0.05, hspace=0.05)
    figure.savefig(path)
