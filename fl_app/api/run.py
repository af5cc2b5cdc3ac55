"""A federation run from a script or a notebook, and runs read back from their folders."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

from fl_app import results
from fl_app.api.settings import as_overrides, check_single
from fl_app.config.compose import key_of
from fl_app.experiments.job import run_job
from fl_app.report import notebook_view


class Run(results.Run):
    """The result of a run, which notebooks show with its gallery."""

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, defense={self.defense!r}, status={self.status!r})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return notebook_view(self.folder)


def run(*overrides: str, verbose: bool = False, **settings: Any) -> Run:
    """Train, defend and attack a federation in this process, and return its result.

    ``run("defense=dgp", rounds=20, attack__steps=300)``: overrides as the command ``fl-app`` takes them, and
    the same as keywords, with ``__`` for a dot or with a dict. They count as typed here: they may name any
    callable. The run without its defense, for comparison, is made only with ``baseline=True``. ``verbose``
    lets Flower log every round.
    """
    wanted = [*overrides, *as_overrides(settings)]
    check_single(wanted, who="fl_app.run")
    if not {"baseline", "resume"} & {key_of(override) for override in wanted}:
        wanted.append("baseline=false")
    with _flower_logs(logging.INFO if verbose else logging.WARNING):
        return load_run(run_job(wanted, verbose=verbose))


def load_run(folder: Path | str) -> Run:
    """Read the run in ``folder``; every failure is a ValueError."""
    found = results.load_run(folder)
    return Run.model_validate(found.as_json()).lies_in(found.folder)


@contextmanager
def _flower_logs(level: int) -> Iterator[None]:
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
