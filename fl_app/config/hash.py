"""Hash of the settings that determine a run's numbers: configs with the same hash ask for the same run.

The keys that are left out cannot change a finished result: ``run_dir`` and
``resume`` are where it goes, ``checkpoint`` is how a killed run goes on, ``wait`` ends a run
or does nothing, ``download`` and a ``root`` that ``FL_APP_DATA`` gave (of one below it, that
part) are how published data comes to this machine. All else stays in: ``threads``, ``device``
and ``engine`` change the order of sums, and so the last bits and the bytes; ``timeout`` loses
late updates; ``baseline`` and ``audit.store`` decide what lies in the run's folder; a ``root``
that the user gave says which data.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from typing import Any

from fl_app.config.build import attacked_rounds

_NOT_IN_THE_NUMBERS = ("run_dir", "resume", "checkpoint", "wait", "log")
_OF_LIARS = ("aggregate", "withstand", "liars", "lie")
_GROUPS_OF_DATA = ("data", "public")


def hash_config(config: Mapping[str, Any]) -> str:
    """Return the hash of a composed config as hexadecimal digits, the same in every process and machine."""
    return hashlib.sha256(json.dumps(what_counts(config), sort_keys=True).encode()).hexdigest()


def what_counts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a composed config that determines a run's numbers."""
    kept = {key: value for key, value in config.items() if key not in _NOT_IN_THE_NUMBERS}
    if kept.get("aggregate", "mean") == "mean" and not kept.get("liars"):
        # older runs, without this choice, had a plain mean of honest clients
        kept = {key: value for key, value in kept.items() if key not in _OF_LIARS}
    for group in kept.keys() & _GROUPS_OF_DATA:
        kept[group] = _without_place(kept[group])
    if "attack" in kept:
        # a run notes its last round's number where the user wrote "last"
        rounds = attacked_rounds(kept["attack"]["rounds"], kept["rounds"])
        kept["attack"] = {**kept["attack"], "rounds": rounds}
    if "audit" in kept:
        # older runs had no such key
        kept["audit"] = {k: v for k, v in kept["audit"].items() if not (k == "pool" and v is None)}
    if kept.get("dp", {}).get("secure") == "auto":
        kept["dp"] = {**kept["dp"], "secure": False}  # as it is in a simulation, and hashes are for those
    return kept


def _without_place(data: Mapping[str, Any]) -> dict[str, Any]:
    # as conf/ resolves it
    here = os.environ.get("FL_APP_DATA", "data")
    kept = {k: v for k, v in data.items() if k != "download" and not (k == "root" and v == here)}
    if str(kept.get("root", "")).startswith(f"{here}/"):
        kept["root"] = kept["root"].removeprefix(f"{here}/")
    return kept
