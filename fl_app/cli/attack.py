"""The command ``fl-app-attack``: attack a finished run again, without training."""

from __future__ import annotations

import argparse
from pathlib import Path

from fl_app.adversary.sightings import load_sightings
from fl_app.config.build import attack_parts
from fl_app.config.compose import join_overrides, key_of
from fl_app.report import write_report
from fl_app.running.attack import attack_sightings
from fl_app.running.result import Results

COMMAND = "fl-app-attack"
_KEYS = ("attack", "device", "threads", "dtype", "model")
_SAME = ("attack", "adaptive", "update", "round", "client", "labels_from")
"""A new entry takes the place of one that agrees in these."""


def attack_again(folder: Path, overrides: list[str]) -> Path:
    """Attack what ``folder`` keeps of its run, add the results to it, and return the report's path."""
    strange = [override for override in overrides if key_of(override).split(".")[0] not in _KEYS]
    if strange:
        raise ValueError(
            f"{strange[0]}: a finished run can be attacked in another way, but not trained in another; "
            f"expected overrides of {', '.join(_KEYS)}"
        )
    sightings, spec, public = load_sightings(folder)
    attacker, model = attack_parts(join_overrides(overrides), spec, public.vocabulary)
    results = Results.reopen(folder)
    before = list(results.content["attacks"])
    results.content["attacks"] = []
    try:
        attack_sightings(sightings, attacker, model, public, results)
    finally:
        new = results.content["attacks"]
        replaced = {tuple(entry[key] for key in _SAME) for entry in new}
        kept = [entry for entry in before if tuple(entry.get(key) for key in _SAME) not in replaced]
        results.content["attacks"] = kept + new
        results.save()
        report = write_report(folder)
    return report


def arguments() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Attack a finished run again, without training."
    )
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="attack=…, attack.steps=… and so on; default: attack=ig",
    )
    return parser
