"""``fl-app policy``: explain a policy, or show the log of a node."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fl_app.enforcement.enforcer import mods_of
from fl_app.policy import DEFAULT, Refusal, in_words, load_policy, read_journal


def main(arguments: list[str] | None = None) -> None:
    """Run ``policy check [FILE]`` or ``policy log FILE``."""
    parser = argparse.ArgumentParser(prog="fl-app policy", description="A node's policy and its log.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="explain what a policy allows")
    check.add_argument("file", nargs="?", type=Path, help="TOML or YAML; without one: the default policy")
    log = commands.add_parser("log", help="show the answers and refusals of a node")
    log.add_argument("file", type=Path, help="the log, or the node's state-dir")
    log.add_argument("--refused", action="store_true", help="refusals only")
    log.add_argument("--json", action="store_true", help="one JSON object a line")
    given = parser.parse_args(arguments)
    if given.command == "check":
        _check(given.file)
    else:
        _log(given.file, refused=given.refused, as_json=given.json)


def _check(file: Path | None) -> None:
    policy = DEFAULT if file is None else load_policy(file)
    try:
        mods_of(policy)
    except Refusal as error:
        raise ValueError(f"{file}: {error.detail}") from error
    for sentence in in_words(policy):
        print(f"- {sentence}")


def _log(file: Path, *, refused: bool, as_json: bool) -> None:
    path = file / "leaving.jsonl" if file.is_dir() else file
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no log")
    for line in read_journal(path):
        if refused and line.get("allowed"):
            continue
        if as_json:
            print(json.dumps(line))
        else:
            verdict = "left" if line.get("allowed") else "refused"
            names = ("time", "run", "round", "kind", "bytes", "decision")
            # as JSON: a log may hold any text, and a terminal obeys some
            time, run, round, kind, size, decision = (json.dumps(line.get(name)) for name in names)
            print(f"{time} run {run} round {round} {kind} {verdict}, {size} bytes, {decision}")
