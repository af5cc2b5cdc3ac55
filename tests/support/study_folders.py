"""A maker of experiment folders: a `study.json` by hand, cells with drawn pictures, a figure, a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from run_folders import write_run

from fl_app.report import save_images

DEFENSES = {"none": 0.06, "topk": 0.25, "dgp": 0.5}
"""By name: how much noise the reconstruction has."""


def write_study(
    folder: Path,
    *,
    name: str = "dgp_table1",
    paper: str = "dgp",
    scale: str = "cpu",
    defenses: Collection[str] = tuple(DEFENSES),
    seeds: tuple[int, ...] = (0,),
    change: Callable[[dict[str, Any]], None] = lambda study: None,
) -> Path:
    """Write an experiment with one finished cell for each defense and seed; ``change`` may edit its file."""
    folder.mkdir(parents=True)
    cells = []
    for defense in defenses:
        for seed in seeds:
            cell = folder / f"{defense}-s{seed}-1a2b3c4d"
            write_run(cell, defense=defense, seed=seed, noise=DEFENSES[defense], rounds=3)
            # a stand-in: a drawn report would take most of the time of the tests
            (cell / "report.html").write_text("<!doctype html><title>report</title>")
            cells.append(
                {
                    "folder": cell.name,
                    "part": "ig",
                    "status": "finished",
                    "overrides": [f"defense={defense}", f"seed={seed}"],
                }
            )
    save_images(torch.rand(1, 3, 90, 160, generator=torch.Generator().manual_seed(0)), folder / "figure1.png")
    (folder / "figure1.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    (folder / "table.csv").write_text("row,column,ours\n")
    study = {
        "name": name,
        "paper": paper,
        "what": "Table 1",
        "title": "Defenses under four attacks",
        "scale": scale,
        "honest": "LeNet instead of ResNet-18, 20 images.",
        "missing": ["ATS with trained policies: they take days"],
        "command": f"fl-app -m experiment={name}",
        "seeds": list(seeds),
        "cells": cells,
        "table": {
            "columns": ["Baseline", "Top-k", "DGP"],
            "rows": [
                {
                    "name": ["IG", "SSIM"],
                    "better": "lower",
                    "ours": [
                        {"mean": 0.9, "sd": 0.05, "n": 20, "unit": "image", "missing": None},
                        {"mean": 0.41234, "sd": None, "n": 1, "unit": "image", "missing": None},
                        {"mean": None, "sd": None, "n": 0, "unit": "image", "missing": "no such cell"},
                    ],
                    "paper": [0.954, 0.981, None],
                },
                {
                    "name": ["accuracy"],
                    "better": "higher",
                    "show": "percent",
                    "digits": 1,
                    "ours": [{"mean": 0.5, "sd": 0.01, "n": 3, "unit": "seed", "missing": None}] * 3,
                    "paper": [0.6, "diverged", 0.55],
                },
                {
                    "name": ["defends"],
                    "better": "none",
                    "ours": [
                        {"mean": 0.5, "sd": 0.01, "n": 20, "unit": "image", "missing": None, "mark": mark}
                        for mark in (True, False, None)
                    ],
                    "paper": ["✗", "✓", None],
                },
            ],
        },
        "figures": [
            {"file": "figure1.png", "svg": "figure1.svg", "title": "Accuracy over rounds", "kind": "lines"}
        ],
        "claims": [
            claim("less", "DGP leaks less than top-k", "holds", p=1e-6),
            claim("order", "top-k leaks less than nothing", "refuted", p=1e-5),
            claim("many", "DGP keeps its accuracy", "not decided", p=0.2),
            claim("none", "ATS leaks less", "not measured", p=None),
        ],
        "versions": {"torch": "2.13.0"},
        "finished": True,
    }
    change(study)
    (folder / "study.json").write_text(json.dumps(study))
    return folder


def claim(name: str, text: str, verdict: str, *, p: float | None) -> dict[str, Any]:
    """Return a claim as a `study.json` has it."""
    return {
        "name": name,
        "text": text,
        "verdict": verdict,
        "words": f"{verdict}, 0.12 < 0.48, 20 images",
        "left": 0.12,
        "right": 0.48,
        "n": 20,
        "unit": "image",
        "p": p,
        "p_family": p,
    }
