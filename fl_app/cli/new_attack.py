"""The command ``fl-app-attack``: attack a finished run again, without training."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from fl_app.adversary.attacker import Attacker
from fl_app.adversary.sightings import load_sightings
from fl_app.cli import foreign_update
from fl_app.cli.announcement import announce
from fl_app.cli.before_hydra import check_overrides
from fl_app.cli.own_code import add_option, import_from_here, search_in
from fl_app.config.build import attack_parts
from fl_app.config.compose import SEARCH_PATH, join_overrides, key_of
from fl_app.report import write_report
from fl_app.results import Attack, hash_settings
from fl_app.running.attack import attack_sightings
from fl_app.running.ownership import claim
from fl_app.running.result import Results
from fl_app.storage.plain_folder import refuse_links

_KEYS = ("attack", "device", "threads", "dtype", "model", "data", "public")


def main(arguments: list[str] | None = None) -> None:
    """Attack the run, or the update in a file, that the arguments name."""
    given = sys.argv[1:] if arguments is None else arguments
    if foreign_update.is_meant(given):
        foreign_update.main(given)
        return
    args = _parser().parse_args(given)
    overrides = [*search_in(args.config_dir), *args.overrides]
    import_from_here()
    check_overrides(overrides)
    attack_again(args.run, overrides)
    announce(args.run)


def attack_again(folder: Path, overrides: list[str]) -> Path:
    """Attack what ``folder`` keeps of its run, add the results to it, and return the report's path.

    Results of other settings stay; the same attack with the same settings takes the place of its results.
    """
    keys = {override: key_of(override) for override in overrides}
    strange = [o for o, key in keys.items() if key.split(".")[0] not in _KEYS and key != SEARCH_PATH]
    if strange:
        raise ValueError(
            f"{strange[0]}: a finished run can be attacked in another way, but not trained in another; "
            f"expected overrides of {', '.join(_KEYS)}"
        )
    refuse_links(folder)
    with claim(folder):  # the result is read now and written at the end
        return _attack(folder, overrides)


def _attack(folder: Path, overrides: list[str]) -> Path:
    sightings, spec, public = load_sightings(folder)
    attacker, model = attack_parts(join_overrides(overrides), spec, public.vocabulary, public.input_shape)
    results = Results.reopen(folder)
    attacker = replace(attacker, mark=_mark(attacker, results.run.attacks))
    attack_sightings(sightings, attacker, model, public, results)
    results.save()
    return write_report(folder)


def _mark(attacker: Attacker, before: list[Attack]) -> str:
    """Return the ending of picture names for settings other than those of the first such attack."""
    own = hash_settings(attacker.settings)
    first = next((entry.settings_hash for entry in before if entry.name == attacker.name), own)
    return "" if own == first else f"-{own}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-app-attack",
        description="Attack a finished run again, without training. With --update or --after and --model: "
        "attack an update in a file (fl-app-attack --update --help).",
    )
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="attack=…, attack.steps=… and so on; default: attack=ig",
    )
    add_option(parser)
    return parser
