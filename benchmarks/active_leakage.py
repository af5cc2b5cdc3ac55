"""Leakage past every defense to a malicious server, and to one that solves for the image.

``python -m benchmarks.active_leakage WORK --data FOLDER [--attacks rob rgap] [--clients 8]``. Each cell is a
real federation of one round on an image folder, kept below WORK; what is there is not run again.
`--table FILE` and `--gallery FILE` write what there is so far.

Rob: an imprint block of 100 bins before LeNet (``--model`` for another), bins fitted to 8,000 public images,
batches of 16. R-GAP: CNN6, single images. The rows of DGP with other shares are those of Table 2 in
the paper on it: what is cut from the top and from the bottom. Against noise, the malicious server may enlarge
the block's gradient further than it does by default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.image import imread

from fl_app.running.attack import EXACT

DEFENSES = {
    "none": "defense=none",
    "ats": "defense=ats",
    "soteria": "defense=soteria",
    "precode": "defense=precode",
    "noise 1e-2": "defense=gaussian defense.std=0.01 attack.gain=1048576",
    "top-k": "defense=topk",
    "outpost": "defense=outpost",
    "dgp": "defense=dgp",
    "adgp": "defense=adgp",
}
LOUD = " (gain 1e9)"
ROB_ALONE = {
    f"noise 1e-2{LOUD}": "defense=gaussian defense.std=0.01 attack.gain=1e9",
    "dgp 3 + 45 %": "defense=dgp defense.k1=0.03 defense.k2=0.45",
    "dgp 6 + 90 %": "defense=dgp defense.k1=0.06 defense.k2=0.90",
    "dgp 10 + 70 %": "defense=dgp defense.k1=0.10 defense.k2=0.70",
    "dgp 20 + 60 %": "defense=dgp defense.k1=0.20 defense.k2=0.60",
}
"""Beside the others: a server that drowns the noise, and the shares of Table 2."""
LEAKY = ("none", "ats", "soteria", "precode", "noise 1e-2")
SAFE = ("top-k", "outpost", "dgp")
"""The paper's groups under Rob: each of the first leaks more than any of the second."""
ATTACKS = {
    "rob": "attack=rob attack.known_images=held_out public.samples=8000 audit.batch_size=16",
    "rgap": "attack=rgap model=cnn6 audit.batch_size=1",
}
TRAINED = "as trained on"


@dataclass(frozen=True)
class Cell:
    """One attack in one form on the updates of one defense: numbers of every image, None if not found."""

    psnr: list[float | None]
    ssim: list[float | None]
    lpips: list[float | None]
    picture: Path | None
    truth: Path | None
    forms: str = "plain"
    """Which attackers get this."""

    @property
    def recovered(self) -> float:
        """The share of images that were found exactly."""
        return statistics.mean(value is not None and value > EXACT for value in self.psnr)

    @property
    def likeness(self) -> float:
        """The mean SSIM; an image that was not found has none."""
        return statistics.mean(value or 0.0 for value in self.ssim)


def main() -> None:
    """Run what is missing, then write the table and the gallery."""
    args = _arguments()
    tables, gallery = [], dict[str, Cell]()
    for attack in args.attacks:
        cells: dict[tuple[str, bool], Cell | str] = {}
        defenses = DEFENSES | (ROB_ALONE if attack == "rob" else {})
        for name, overrides in defenses.items():
            folder = _run(args, attack, name, overrides)
            cells |= {(who, adaptive): cell for who, adaptive, cell in _cells(folder, name)}
            print(f"{attack}, {name}: done", flush=True)
        tables.append(_table(attack, cells))
        if attack == "rob":
            tables.append(_order(cells))
            gallery = {
                f"{who}, {cell.forms}": cell
                for (who, _), cell in cells.items()
                if isinstance(cell, Cell) and cell.picture is not None
            }
    text = "\n".join(tables)
    print(text)
    if args.table is not None:
        args.table.write_text(text)
    if args.gallery is not None and gallery:
        _draw(gallery, args.gallery)


def _run(args: argparse.Namespace, attack: str, name: str, overrides: str) -> Path:
    """Run a federation of one round in which every client is attacked, once."""
    folder: Path = args.work / f"{attack}-{args.model}-{name.replace(' ', '')}"
    result = folder / "result.json"
    if result.is_file() and json.loads(result.read_text())["status"] == "finished":
        return folder
    clients = args.clients if attack == "rob" else args.images
    command = [sys.executable, "-m", "fl_app", "data=imagefolder", f"data.root={args.data}", "baseline=false"]
    command += [f"model={args.model}"] if attack == "rob" else []
    command += [*overrides.split(), *ATTACKS[attack].split(), f"clients={clients}", "rounds=1"]
    command += ["attack.clients=all", "audit.contrast=false", "audit.store=false"]
    command += [f"seed={args.seed}", f"run_dir={folder}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"benchmarks.active_leakage: {' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    return folder


def _cells(folder: Path, defense: str) -> list[tuple[str, bool, Cell | str]]:
    """Return the numbers of all attacked clients by form, also against what was trained on instead."""
    entries = json.loads((folder / "result.json").read_text())["attacks"]
    found: dict[tuple[str, bool], Cell | str] = {}
    for adaptive in (False, True):
        own = [entry for entry in entries if entry["adaptive"] == adaptive]
        trained = [entry["trained"] | {"truth": None} for entry in own if "trained" in entry]
        for name, group in ((defense, own), (f"{defense} ({TRAINED})", trained)):
            if not group:
                continue
            cell, plain = _cell(folder, group), found.get((name, False))
            if isinstance(cell, Cell) and isinstance(plain, Cell) and cell.psnr == plain.psnr:
                found[name, False] = replace(plain, forms="both")
            elif isinstance(cell, Cell):
                found[name, adaptive] = replace(cell, forms="adaptive" if adaptive else "plain")
            else:
                found[name, adaptive] = cell
    return [(name, adaptive, cell) for (name, adaptive), cell in found.items()]


def _cell(folder: Path, entries: list[dict[str, Any]]) -> Cell | str:
    if not any(value is not None for entry in entries for value in entry["psnr"] or []):
        return str(entries[0]["notes"][-1])  # the reason

    def all_of(name: str) -> list[float | None]:
        values = []
        for entry in entries:
            batch = entry.get("batch_size") or len(entry[name] or [])
            values += entry[name] or [None] * batch
        return values

    first = entries[0]
    picture, truth = (folder / first[key] if first.get(key) else None for key in ("images", "truth"))
    return Cell(all_of("psnr"), all_of("ssim"), all_of("lpips"), picture, truth)


def _table(attack: str, cells: dict[tuple[str, bool], Cell | str]) -> str:
    number = max(len(cell.psnr) for cell in cells.values() if isinstance(cell, Cell))
    columns = "recovered | PSNR | SSIM | max | LPIPS | min"
    lines = [f"**{attack}, {number} images**", "", f"| defense | form | {columns} |", "|---" * 8 + "|"]
    for (defense, _), cell in cells.items():
        lines.append(
            f"| {defense} | {cell.forms if isinstance(cell, Cell) else 'plain'} | {_numbers(cell)} |"
        )
    return "\n".join(lines) + "\n"


def _numbers(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return f"{cell} | | | | |"
    psnr, ssim, lpips = (
        [value for value in values if value is not None] for values in (cell.psnr, cell.ssim, cell.lpips)
    )
    shown = [f"{cell.recovered:.0%}", f"{statistics.mean(psnr):.1f} dB"]
    shown += [f"{cell.likeness:.3f}", f"{max(ssim):.3f}"]
    shown += [f"{statistics.mean(lpips):.3f}", f"{min(lpips):.2g}"] if lpips else ["–", "–"]
    return " | ".join(shown)


def _order(cells: dict[tuple[str, bool], Cell | str]) -> str:
    """Say whether the paper's order between its two groups holds, for each form of the attacker."""

    def worst(name: str, forms: Sequence[bool]) -> float:
        names = (name, f"{name} ({TRAINED})", f"{name}{LOUD}")
        known = [cells.get((who, form)) for who in names for form in forms]
        return max(cell.likeness for cell in known if isinstance(cell, Cell))

    lines = []
    for title, forms in (("plain", (False,)), ("the worse of plain and adaptive", (False, True))):
        leaky, safe = ({name: worst(name, forms) for name in group} for group in (LEAKY, SAFE))
        least, most = min(leaky, key=lambda n: leaky[n]), max(safe, key=lambda n: safe[n])
        verdict = "holds" if leaky[least] > safe[most] else "does not hold"
        lines.append(
            f"Order between the groups by SSIM, {title}: {verdict} "
            f"({least} {leaky[least]:.3f}, {most} {safe[most]:.3f})."
        )
    return "\n".join(lines) + "\n"


def _draw(cells: dict[str, Cell], path: Path) -> None:
    """Draw the first client's images and what each form of the attack made of them."""
    first = next(iter(cells.values()))
    strips = [("original", first.truth), *((title, cell.picture) for title, cell in cells.items())]
    shown = [(title, imread(picture)) for title, picture in strips if picture is not None]
    height, width = shown[0][1].shape[:2]
    figure = Figure(figsize=(10, 0.3 + len(shown) * 8 * height / width), dpi=100)
    for axes, (title, strip) in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown, strict=True):
        axes.imshow(strip, interpolation="nearest")
        axes.set_axis_off()
        axes.text(-0.01, 0.5, title, transform=axes.transAxes, ha="right", va="center", fontsize=8)
    figure.subplots_adjust(left=0.2, right=0.99, top=0.99, bottom=0.01, hspace=0.05)
    figure.savefig(path)


def _arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.active_leakage", description=__doc__.split("\n")[0])
    parser.add_argument("work", type=Path, help="folder of the runs")
    parser.add_argument("--data", type=Path, required=True, help="an image folder with train/ and test/")
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--model", default="lenet", help="behind the imprint block")
    parser.add_argument("--clients", type=int, default=8, help="of Rob, with a batch of 16 each")
    parser.add_argument("--images", type=int, default=20, help="of R-GAP")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--gallery", type=Path)
    args = parser.parse_args(argv)
    args.work, args.data = args.work.resolve(), args.data.resolve()
    return args


if __name__ == "__main__":
    main()
