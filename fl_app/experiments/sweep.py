"""Sweep: one run per cell, each in a folder named by its config.

A cell is finished if its folder is marked so and has the config's hash. Finished cells are not run
again, so an interrupted sweep continues with the rest. An unfinished cell resumes from its checkpoint,
if it has one, and otherwise starts over. Processes that run the same sweep share the work: each skips
cells locked by another. One sweep may also start several processes.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from omegaconf import OmegaConf

from fl_app.config.compose import ConfigError, compose, join_overrides, quote
from fl_app.config.hash import hash_config
from fl_app.console.logs import show_logs
from fl_app.console.progress import Advance, track
from fl_app.experiments.job import can_resume, is_done, run_job
from fl_app.experiments.workers import Died, work_off
from fl_app.running.ownership import claim as own_folder
from fl_app.storage.locks import claim

logger = logging.getLogger(__name__)

_HASH_DIGITS = 8
_LOOK_AGAIN_SECONDS = 2.0


class Cell(NamedTuple):
    """One run of a sweep: its config, and the folder of the whole sweep."""

    overrides: list[str]
    sweep_folder: Path
    name: str | None = None
    """Display name; None: the overrides in which it differs from the others."""


@dataclass(frozen=True)
class SweepEnd:
    """Folders of the finished cells, in order, and names of the failed ones."""

    finished: list[Path]
    failed: list[str]
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Reasons of failures by the cell's number."""


class _Outcome(NamedTuple):
    words: str
    folder: Path | None = None
    """Folder of a finished cell."""
    left: bool = False
    """Whether another process runs the cell; its outcome must be looked up."""


def run_sweep(cells: Sequence[Cell], say: Callable[[str], None], *, jobs: int = 1) -> SweepEnd:
    """Run the unfinished cells in ``jobs`` processes, and pass ``say`` one line per cell.

    A cell that fails does not stop the others. A cell locked by another process is checked again
    when no other work is left.
    """
    names = _names(cells)
    outcomes: dict[int, _Outcome] = {}
    waiting = list(range(len(cells)))
    with track("cells", len(cells)) as advance:
        while waiting:
            # cells left to others are checked by this process alone
            for i, outcome in _attempts(cells, names, waiting, 1 if outcomes else jobs, advance):
                if outcome != outcomes.get(i):
                    say(f"cell {i + 1} of {len(cells)}: {names[i]}: {outcome.words}")
                outcomes[i] = outcome
            waiting = [i for i in waiting if outcomes[i].left]
            if waiting:
                time.sleep(_LOOK_AGAIN_SECONDS)
    folders = [outcomes[i].folder for i in range(len(cells))]
    return SweepEnd(
        # a cell that occurs twice has one folder
        finished=list(dict.fromkeys(folder for folder in folders if folder is not None)),
        failed=[name for name, folder in zip(names, folders, strict=True) if folder is None],
        reasons={i: outcomes[i].words for i, folder in enumerate(folders) if folder is None},
    )


def cell_name(config: Mapping[str, Any]) -> str:
    """Return the name of a cell's folder: the most distinctive settings, and the first digits of its hash."""
    chosen = [config["choices"].get(group) for group in ("defense", "dp")]
    words = [chosen[0], *(word for word in chosen[1:] if word not in (None, "none"))]
    return "-".join([*words, f"s{config['seed']}", hash_config(config)[:_HASH_DIGITS]])


def _names(cells: Sequence[Cell]) -> list[str]:
    """Return the name of every cell: the overrides that not all of them share."""
    common = set.intersection(*(set(cell.overrides) for cell in cells)) if cells else set()
    return [
        cell.name or " ".join(o for o in cell.overrides if o not in common) or join_overrides(cell.overrides)
        for cell in cells
    ]


def _attempts(
    cells: Sequence[Cell], names: Sequence[str], wanted: Sequence[int], jobs: int, advance: Advance
) -> Iterator[tuple[int, _Outcome]]:
    """Yield the outcome of each wanted cell, run in this process or in several others."""
    over = len(cells) - len(wanted)

    def begun(number: int) -> None:
        advance(over, f"cell {wanted[number] + 1} of {len(cells)}: {names[wanted[number]]}")

    if jobs == 1:
        for number, i in enumerate(wanted):
            begun(number)
            yield i, _attempt(cells[i])
            over += 1
        return
    prepare = partial(show_logs, logging.getLogger().isEnabledFor(logging.INFO))
    tasks = [cells[i] for i in wanted]
    for number, end in work_off(tasks, _attempt, jobs=jobs, prepare=prepare, begun=begun):
        over += 1
        if isinstance(end, Died):
            end = _Outcome(f"failed: its process ended with code {end.exit_code}")
        yield wanted[number], end


def _attempt(cell: Cell) -> _Outcome:
    start = time.perf_counter()
    try:
        config = _config(cell)
        folder = cell.sweep_folder / cell_name(config)
        if is_done(folder, config, sweep=True):
            return _Outcome("skipped, finished already", folder)
        with claim(folder.with_name(f"{folder.name}.lock")) as other:
            if other is not None:
                return _Outcome(f"left to {other}", left=True)
            if is_done(folder, config, sweep=True):  # by now
                return _Outcome("skipped, finished already", folder)
            resume = [f"resume={quote(folder)}"] if can_resume(folder, config) else []
            if folder.exists() and not resume:
                # leftovers of an interrupted run must not pass for the new run's
                with own_folder(folder):
                    shutil.rmtree(folder)
            run_job([*cell.overrides, *resume], folder=folder, sweep=True)
            if not is_done(folder, config, sweep=True):
                raise RuntimeError(
                    f"{folder}: the run ended with another config; was conf/ changed meanwhile?"
                )
    except Exception as error:
        mendable = isinstance(error, ValueError | OSError)
        logger.log(logging.DEBUG if mendable else logging.ERROR, "a cell failed", exc_info=True)
        reason = str(error) if mendable else f"{type(error).__name__}: {error}"
        return _Outcome(f"failed after {time.perf_counter() - start:.1f} s: {reason}")
    return _Outcome(f"finished in {time.perf_counter() - start:.1f} s", folder)


def _config(cell: Cell) -> dict[str, Any]:
    cfg = compose(join_overrides(cell.overrides))
    if cfg.run_dir is not None:
        raise ConfigError("run_dir: a sweep names the folders of its cells; expected hydra.sweep.dir instead")
    return cast(dict[str, Any], OmegaConf.to_container(cfg))
