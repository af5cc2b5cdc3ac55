"""``fl-app key=value …``: one run, or with ``-m`` the cells of a sweep or a study, as Hydra composes them."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from fl_app.cli.before_hydra import check_overrides, refuse_sweep, swept_besides
from fl_app.cli.front_door import is_bare, unknown_word
from fl_app.cli.own_code import import_from_here, search_in
from fl_app.config.compose import (
    CONF_DIR,
    CONFIG_NAME,
    SEARCH_PATH,
    ConfigError,
    key_of,
    study_of,
    with_plus,
)
from fl_app.console.logs import show_logs
from fl_app.storage.plain_folder import remove_if_empty

_OWN = ("scale", "parts", "jobs")
"""Arguments that are no settings of a run: which cells, and how many at a time."""
RUNS = "runs"
"""The folder that Hydra plans if the user names none: the run makes one of its own below it."""
_MULTIRUN = "hydra.mode=MULTIRUN"


def main(arguments: list[str]) -> None:
    """Run what the arguments describe; ``-m`` sweeps over comma-separated values."""
    own, given = _own_arguments(arguments)
    read = _read(given)
    overrides: list[str] = read.overrides
    if read.shell_completion:  # "install=bash" is no setting
        _run_hydra(arguments, [], [], 1)
        return
    if stray := [word for word in overrides if is_bare(word)]:
        raise ConfigError(unknown_word(stray[0]))
    import_from_here()
    searched = search_in(read.config_dir) or [o for o in overrides if o.startswith(f"{SEARCH_PATH}=")]
    sweeps = read.multirun or _MULTIRUN in overrides
    experiments = _experiments(overrides) if sweeps and not _only_shows(read) else []
    studies = {name: study for name in experiments if (study := study_of(name, searched)) is not None}
    if len(experiments) == 1 and studies:
        from fl_app.cli.study import run_one

        run_one(experiments[0], studies[experiments[0]], own, overrides, searched)
        return
    if studies:
        raise ConfigError(
            f"experiment: {', '.join(studies)}: a study runs alone, got {', '.join(experiments)}"
        )
    if wrong := [key for key in own if key != "jobs" or not sweeps]:
        raise ConfigError(f"{wrong[0]}: goes with {'-m' if wrong[0] == 'jobs' else '-m and a study'}")
    jobs = jobs_of(own)
    plus = {old: new for old, new in zip(overrides, with_plus(overrides), strict=True) if old != new}
    given, overrides = ([plus.get(word, word) for word in words] for words in (given, overrides))
    if sweeps:
        check_overrides([*searched, *swept_besides([*searched, *overrides]), *overrides])
    else:
        refuse_sweep(overrides)
        check_overrides([*searched, *overrides])
    _run_hydra(given, overrides, searched, jobs)


def jobs_of(own: dict[str, str]) -> int:
    """Return how many cells run at a time."""
    text = own.get("jobs", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"jobs: must be a whole number of at least 1, got {text!r}")
    return int(text)


def _run_hydra(arguments: list[str], overrides: list[str], searched: list[str], jobs: int) -> None:
    """Let Hydra say which runs there are, and run them; ``searched`` goes with each."""
    # Hydra would turn an error into its own message and hide an interruption
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    OmegaConf.register_new_resolver("sweep_name", lambda experiment, else_: experiment or else_, replace=True)
    # run only after Hydra has returned: it would print an error of its own above ours
    planned: list[tuple[list[str], Path]] = []
    swept = verbose = False

    def job(cfg: DictConfig) -> None:
        nonlocal swept, verbose
        state = HydraConfig.get()
        verbose = bool(state.verbose)
        swept = state.mode == RunMode.MULTIRUN
        if swept:
            from fl_app.cli.sweep import check_launch

            check_launch(state)
        planned.append(([*searched, *state.overrides.task], Path(state.runtime.output_dir)))

    sys.argv[1:] = arguments
    hydra.main(config_path=str(CONF_DIR), config_name=CONFIG_NAME, version_base="1.3")(job)()
    if planned and not swept:
        _run(*planned[0], verbose=verbose)
    elif planned:
        from fl_app.cli.sweep import run_cells

        show_logs(verbose)
        keys = [key_of(override) for override in overrides]
        run_cells(planned, named="experiment" in keys or "hydra.sweep.dir" in keys, jobs=jobs)


def _run(overrides: list[str], planned: Path, *, verbose: bool) -> None:
    from fl_app.cli.announcement import announce
    from fl_app.experiments.job import run_job

    show_logs(verbose)  # only now: Flower sets its own level when it is imported
    unnamed = planned.resolve() == Path(RUNS).resolve()
    try:
        folder = run_job(overrides, folder=None if unnamed else planned)
    finally:
        remove_if_empty(planned)  # Hydra made it, and the run went elsewhere or was refused
    announce(folder)


def _read(arguments: list[str]) -> Namespace:
    """Read the options as Hydra does, at any place among the overrides."""
    read, unknown = get_args_parser().parse_known_intermixed_args(arguments)
    if unknown:
        raise ConfigError(f"{unknown[0]}: unknown option; fl-app --help lists them")
    return read


def _only_shows(read: Namespace) -> bool:
    """Say whether an option asks Hydra to print something and to run nothing."""
    return bool(read.cfg or read.info or read.hydra_help or read.shell_completion)


def _own_arguments(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the arguments that are not Hydra's, by key, and the rest."""
    split = [(argument, *argument.partition("=")[::2]) for argument in arguments]
    own = {key: value for argument, key, value in split if key in _OWN and "=" in argument}
    return own, [argument for argument, key, _ in split if key not in own]


def _experiments(overrides: list[str]) -> list[str]:
    values = [o.partition("=")[2] for o in overrides if o.partition("=")[0] == "experiment"]
    return [name for value in values[-1:] for name in value.split(",") if name]
