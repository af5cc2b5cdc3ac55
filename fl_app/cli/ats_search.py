"""The command ``fl-app-ats-search``: find policies of `ats` for a model and its data."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from fl_app.cli.guard import guarded
from fl_app.cli.own_code import add_option, import_from_here, search_in
from fl_app.config.build import ServerParts, server_parts
from fl_app.config.compose import join_overrides, key_of
from fl_app.config.trust import WHOLE
from fl_app.console.progress import track
from fl_app.defenses import LIBRARY, Found, Scored, judge_with, search_policies
from fl_app.seeding import SERVER, generator_for
from fl_app.training import Job, LocalData, compute_gradient, parameters

COMMAND = "fl-app-ats-search"
SHOWN = 10
"""Lines of the table."""


def main(arguments: list[str] | None = None) -> None:
    """Run ``fl-app-ats-search [--options] [key=value …]``."""
    guarded(COMMAND, lambda: _run(arguments), interrupted="nothing was picked")


def search(
    parts: ServerParts,
    *,
    candidates: int,
    keep: int,
    margin: float,
    images: int,
    jacobians: int,
    train_steps: int,
) -> Found:
    """Search with the run's data and initial model.

    Gao et al. take S_pri from a model that is a little trained, and S_acc from an
    untrained one. The images that are scored are not trained on.
    """
    if train_steps < 0:
        raise ValueError(f"--train-steps must be at least 0, got {train_steps}")
    scored, rest = _split(parts, max(images, jacobians))
    trained = copy.deepcopy(parts.model)
    _train_shortly(trained, rest, parts.config, train_steps)
    judge = judge_with(
        scored,
        trained=trained,
        untrained=parts.model,
        images=images,
        jacobians=jacobians,
        generator=_generator(parts, "noise"),
    )
    return search_policies(
        judge, candidates=candidates, keep=keep, margin=margin, generator=_generator(parts, "policies")
    )


def _run(arguments: list[str] | None) -> None:
    args = vars(_parser().parse_intermixed_args(arguments))
    overrides, out, folder = args.pop("overrides"), args.pop("out"), args.pop("config_dir")
    import_from_here()
    given = {key_of(override).split(".")[0] for override in overrides} & {"defense", "attack"}
    if given:
        raise ValueError(f"{', '.join(sorted(given))}: leave it out, the search trains undefended")
    parts = server_parts(
        join_overrides([*search_in(folder), *overrides, "defense=none", "attack=none"]), WHOLE
    )
    found = search(parts, **args)
    Console().print(_table(found))
    policies = json.dumps([scored.policy for scored in found.picked], separators=(",", ":"))
    if any(scored.privacy >= found.untransformed.privacy for scored in found.picked):
        print("note: not every picked policy is more private (lower S_pri) than the untransformed images")
    print(f"use: defense=ats 'defense.policies={policies}'")
    if out is not None:
        content = {"overrides": overrides, "settings": args, **_as_json(found)}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(content, indent=2) + "\n")
        print(f"scores: {out.resolve()}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Search policies for defense=ats (Gao et al., CVPR 2021)."
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="as for fl-app: data, model, seed …"
    )
    for name, kind, default, words in (
        ("candidates", int, 200, "random policies to score"),
        ("keep", int, 2, "policies to pick"),
        ("margin", float, 0.25, "how much worse S_acc may be than without a policy, as a share"),
        ("images", int, 24, "images on which S_pri is computed"),
        ("jacobians", int, 100, "images on which S_acc is computed"),
        ("train-steps", int, 30, "steps of SGD before S_pri is computed"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"{words}; default: {default}")
    parser.add_argument("--out", type=Path, help="write all scores to this file, as JSON")
    add_option(parser)
    return parser


def _split(parts: ServerParts, count: int) -> tuple[LocalData, LocalData]:
    """Draw ``count`` training samples to be scored; the others may be trained on."""
    dataset, seed = parts.dataset, parts.config["seed"]
    if count >= len(dataset.train):
        size = len(dataset.train)
        raise ValueError(f"--images, --jacobians: must be below {size}, all training samples; got {count}")
    order = torch.randperm(len(dataset.train), generator=_generator(parts, "images"), device="cpu")
    scored, rest = (
        LocalData(dataset.train.take(indices), dataset.mean, dataset.std, seed, SERVER)
        for indices in (order[:count], order[count:])
    )
    return scored, rest


def _train_shortly(model: nn.Module, data: LocalData, config: dict[str, Any], steps: int) -> None:
    """Run plain SGD with the batch size and learning rate of the run."""
    model.train()
    trainer = compute_gradient(config["batch_size"])
    generator = generator_for(config["seed"], 0, SERVER, "ats/training")
    with track("training", steps) as advance:
        for step in range(1, steps + 1):
            trained = trainer(model, data, Job(round=step, lr=config["lr"], generator=generator))
            with torch.no_grad():
                for name, p in parameters(model).items():
                    p.sub_(trained.update[name], alpha=config["lr"])
            advance(step, f"loss {trained.loss:.3f}")


def _generator(parts: ServerParts, purpose: str) -> torch.Generator:
    return generator_for(parts.config["seed"], 0, SERVER, f"ats/{purpose}")


def _table(found: Found) -> Table:
    table = Table(
        title=f"S_acc must reach {found.least_accuracy:.1f}: {len(found.accepted)} policies do",
        title_justify="left",
    )
    for column in ("", "policy", "S_pri", "S_acc", "operations"):
        table.add_column(column, justify="right" if column.startswith("S_") else "left")
    rows = [("", found.untransformed)]
    rows += [("picked" if one in found.picked else "", one) for one in found.accepted[:SHOWN]]
    for mark, one in rows:
        numbers = "-".join(map(str, one.policy)) or "none"
        table.add_row(mark, numbers, f"{one.privacy:.4f}", f"{one.accuracy:.1f}", ", ".join(_names(one)))
    return table


def _as_json(found: Found) -> dict[str, Any]:
    def row(one: Scored) -> dict[str, Any]:
        return {
            "policy": list(one.policy),
            "operations": _names(one),
            "privacy": one.privacy,
            "accuracy": one.accuracy,
        }

    return {
        "picked": [list(one.policy) for one in found.picked],
        "least_accuracy": found.least_accuracy,
        "untransformed": row(found.untransformed),
        "accepted": [row(one) for one in found.accepted],
    }


def _names(scored: Scored) -> list[str]:
    return [str(LIBRARY[number]) for number in scored.policy]
