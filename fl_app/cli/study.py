"""``fl-app -m experiment=…`` of a study: its cells, then its table and the verdicts on its claims."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from fl_app.cli.guard import INTERRUPTED
from fl_app.cli.run import jobs_of
from fl_app.cli.sweep import end_with_failures
from fl_app.config.compose import SEARCH_PATH, ConfigError
from fl_app.console.logs import show_logs
from fl_app.console.streams import say
from fl_app.experiments.studies import DEFAULT_SCALE, StudyOrder, run_study, table_for_terminal

_PLACE = "hydra.sweep.dir"
_TAKEN = (_PLACE, "hydra.verbose", "hydra.mode", SEARCH_PATH)
"""Settings of Hydra that a study minds."""


def run_one(
    name: str, study: dict[str, Any], own: dict[str, str], overrides: list[str], searched: list[str]
) -> None:
    """Run a study's cells, and show its table and the verdicts on its claims."""
    hydras = {
        key: value for key, _, value in (o.partition("=") for o in overrides) if key.startswith("hydra")
    }
    if wrong := [key for key in hydras if key not in _TAKEN]:
        raise ConfigError(
            f"{wrong[0]}: a study is not run by Hydra; expected jobs=N or hydra.sweep.dir=FOLDER"
        )
    show_logs(hydras.get("hydra.verbose", "false").lower() == "true")
    # its place on this machine is no part of a result
    placed = [override for override in overrides if not override.startswith(f"{_PLACE}=")]
    typed = [*(f"{key}={value}" for key, value in own.items()), *searched, *placed]
    order = StudyOrder(
        name=name,
        raw=study,
        command=shlex.join(["fl-app", "-m", *typed]),
        scale=own.get("scale", DEFAULT_SCALE),
        parts=tuple(part for part in own.get("parts", "").split(",") if part),
        overrides=(*searched, *(o for o in overrides if not o.startswith(("experiment=", "hydra")))),
        root=Path(hydras.get(_PLACE, StudyOrder.root)),
        jobs=jobs_of(own),
    )
    try:
        end = run_study(order, say)
    except KeyboardInterrupt:
        print("fl-app: interrupted; the same command goes on with what is not finished", file=sys.stderr)
        sys.exit(INTERRUPTED)
    console = Console()
    if end.found.lines:
        console.print(table_for_terminal(end.found.study, end.found.lines, console.width))
    for verdict in end.found.verdicts:
        console.print(f"{verdict.claim.text}: {verdict.words}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"study: {end.page.resolve()}", markup=False, soft_wrap=True)
    end_with_failures(end.failed, len(end.found.cells), "the same command")
