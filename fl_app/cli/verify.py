"""``fl-app verify``: rerun published results and compare them with what was published."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from fl_app.console.logs import show_logs
from fl_app.console.streams import say
from fl_app.experiments.verification import ABSOLUTE, RELATIVE, Verification, find_published, verify

PUBLISHED = Path("docs/results")
"""Folder of the results that the repository publishes."""
_OWN = Path("multirun")


def main(arguments: list[str] | None = None) -> None:
    """Run ``verify STUDY[/CELL]``; the exit code is 1 if a score differs and 2 if a cell cannot be rerun."""
    parser = argparse.ArgumentParser(
        prog="fl-app verify",
        description="Rerun published results of a study and compare every score: bit by bit on the same "
        f"processor and torch, elsewhere means within {RELATIVE:.0%} or {ABSOLUTE}.",
    )
    parser.add_argument(
        "study",
        metavar="STUDY[/CELL]",
        help="a study's name, or a folder with study.json; after a slash the name of one of its cells",
    )
    parser.add_argument("--folder", type=Path, help="keep the reruns there, and go on with those in it")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error(f"--jobs: expected at least 1, got {given.jobs}")
    show_logs(False)
    name, cell = _split(given.study)
    folder = find_published(name, (PUBLISHED, _OWN))
    say(f"published: {folder}")
    if given.folder is not None:
        found = verify(folder, cell, given.folder, say, given.jobs)
    else:
        with tempfile.TemporaryDirectory(prefix="fl-app-verify-") as work:
            found = verify(folder, cell, Path(work), say, given.jobs)
    _show(found)
    if not found.agrees:
        sys.exit(2 if found.failed else 1)


def _split(text: str) -> tuple[str, str | None]:
    """Return the study and the cell: cells have a colon or a space in their names, studies have not."""
    if Path(text).is_dir():
        return text, None
    parts = text.split("/")
    for end in range(len(parts) - 1, 0, -1):
        if Path(name := "/".join(parts[:end])).is_dir():
            return name, "/".join(parts[end:])
    name, _, cell = text.partition("/")
    return name, cell or None


def _show(found: Verification) -> None:
    for one in found.compared:
        for note in one.notes:
            say(f"{one.cell}: {note}")
        how = "bit by bit" if one.exact else f"means within {RELATIVE:.0%} or {ABSOLUTE}"
        verdict = "agrees" if one.agrees else "differs" if one.compared else "has nothing to compare"
        say(f"{one.cell}: {verdict}; {one.compared} numbers compared, {how}")
        for difference in one.differences:
            say(f"  {difference}")
    for cell, reason in found.failed.items():
        say(f"{cell}: not rerun: {reason}")
    agreeing = sum(one.agrees for one in found.compared)
    say(f"verified: {agreeing} of {len(found.compared) + len(found.failed)} cells agree")
