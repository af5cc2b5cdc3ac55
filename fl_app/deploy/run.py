"""Start this app on a SuperLink, show its log, and say by the exit code whether the run finished.

``python -m fl_app.deploy.run --app FOLDER --superlink HOST:PORT --root-certificates FILE overrides="…"``
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from fl_app.config.compose import ConfigError, compose, join_overrides, key_of, split_overrides
from fl_app.deploy.flower_command import FlowerCommand, add_superlink, reach_superlink

_KEY = "overrides="
_POLL_SECONDS = 1.0
_FINISHED, _COMPLETED = "finished", "finished:completed"


class RunError(RuntimeError):
    """Failure of a request to the SuperLink."""


def merge(given: str, wanted: str) -> str:
    """Return the overrides ``wanted``, and before them those ``given`` that they do not set themselves."""
    asked = split_overrides(wanted)
    keys = {key_of(override) for override in asked}
    merged = join_overrides([o for o in split_overrides(given) if key_of(o) not in keys] + asked)
    compose(merged)  # now, not in a process of the server
    return merged


def start(flower: FlowerCommand, app: Path, overrides: str) -> str:
    """Hand the app in and return the run's id."""
    config = flower.home / "run.toml"
    config.write_text(f"overrides = {json.dumps(overrides, ensure_ascii=False)}\n")
    done = flower.run("run", "--run-config", str(config), "--format", "json", str(app))
    answer = _read(done.stdout, done.stderr)
    if not answer.get("success"):
        raise RunError(f"run: the app was not started: {answer}")
    return str(answer["run-id"])


def status(flower: FlowerCommand, run: str) -> str:
    """Return the status of a run: pending, starting, running, or finished and how."""
    done = flower.run("list", "--run-id", run, "--format", "json")
    answer = _read(done.stdout, done.stderr)
    try:
        return str(answer["runs"][0]["status"])
    except (KeyError, IndexError):
        raise RunError(f"run: the SuperLink gives no status of run {run}: {answer}") from None


def _read(said: str, complaint: str) -> dict[str, Any]:
    found = re.search(r"^\{.*^\}|^\{.*\}$", said, re.DOTALL | re.MULTILINE)
    if found is None:
        raise RunError(f"run: flwr said: {(said + complaint).strip()}")
    answer: dict[str, Any] = json.loads(found[0])
    return answer


def _follow(flower: FlowerCommand, run: str) -> str:
    """Show the log of a run to its end, and return how it ended."""
    flower.show("log", run, "--stream")
    while not (now := status(flower, run)).startswith(_FINISHED):
        time.sleep(_POLL_SECONDS)
    return now


def main() -> None:
    """Start, follow, tell."""
    parser = argparse.ArgumentParser(prog="fl_app.deploy.run", description=__doc__.splitlines()[0])
    parser.add_argument("--app", type=Path, required=True, help="the folder with the app's pyproject.toml")
    add_superlink(parser)
    parser.add_argument("--given", default="", help="overrides that hold unless others are asked for")
    parser.add_argument("wanted", nargs="?", default=_KEY, metavar='overrides="key=value …"')
    args = parser.parse_args()
    if not args.wanted.startswith(_KEY):
        parser.error(f'expected overrides="key=value …", got {args.wanted!r}')
    try:
        overrides = merge(args.given, args.wanted.removeprefix(_KEY).strip('"'))
        with reach_superlink(args) as flower:
            run = start(flower, args.app, overrides)
            print(f"run {run}: {overrides}", flush=True)
            end = _follow(flower, run)
    except (ConfigError, RunError) as error:
        sys.exit(f"{error}")
    except KeyboardInterrupt:
        sys.exit("run: no longer followed; the run goes on")
    print(f"run {run}: {end}")
    sys.exit(0 if end == _COMPLETED else 1)


if __name__ == "__main__":
    main()
