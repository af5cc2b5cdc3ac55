"""One job: a run, and its baseline without the defense.

A defended run alone does not show the cost of its defense in accuracy. The baseline
has the same seed, data and clients; it is trained, not attacked, and lies in the
run's folder, where the report finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from fl_app import client_app, server_app
from fl_app.config.build import baseline_of
from fl_app.config.compose import (
    ConfigError,
    compose,
    join_overrides,
    key_of,
    parse_overrides,
    quote,
)
from fl_app.config.hash import hash_config
from fl_app.config.true_names import TARGET
from fl_app.config.trust import compose_sent, trust_of
from fl_app.config.variants import undefended
from fl_app.flower import run_app
from fl_app.report import BASELINE, write_report
from fl_app.running.checkpoint import read_checkpoint
from fl_app.running.result import find_run, run_folder
from fl_app.storage.plain_folder import remove_if_empty
from fl_app.tracking import check_tracker, copy_run

logger = logging.getLogger(__name__)


def run_job(
    overrides: list[str],
    *,
    folder: Path | None = None,
    sweep: bool = False,
    backend: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> Path:
    """Run the job that ``overrides`` describe and return its folder.

    ``folder`` is the output folder unless the overrides name one. ``backend`` overrides the engine's
    own settings. With ``resume=FOLDER`` among the overrides, the interrupted run in that folder
    continues with its original settings. Of a resumed baseline, the run that it belongs to is returned.
    """
    overrides = _with_past(overrides)
    cfg = compose(join_overrides(overrides))
    check_tracker(cfg.log)
    if cfg.dp.get("secure") == "auto":
        overrides = [*overrides, "dp.secure=false"]  # simulations must be reproducible
    folder = run_folder(cfg.resume or cfg.run_dir or folder, cfg.choices.defense)
    try:
        _run(overrides, cfg, folder, sweep=sweep, backend=backend, verbose=verbose)
    finally:
        remove_if_empty(folder)  # it was refused
    if folder.name == BASELINE and find_run(folder.parent) is not None:  # resumed by itself
        write_report(folder.parent)
        return folder.parent
    return folder


def _run(
    overrides: list[str],
    cfg: DictConfig,
    folder: Path,
    *,
    sweep: bool,
    backend: Mapping[str, Any] | None,
    verbose: bool,
) -> None:
    engine = cast(dict[str, Any], OmegaConf.to_container(cfg.engine)) | dict(backend or {})

    def run(wanted: list[str], where: Path) -> None:
        config = {"overrides": join_overrides([*wanted, f"run_dir={quote(where)}"])}
        run_app(
            server_app.app, client_app.app, cfg.clients, run_config=config, engine=engine, verbose=verbose
        )

    run(overrides, folder)
    if cfg.log is not None:
        copy_run(folder, cfg.log)
    if _wants_baseline(cfg, sweep=sweep):
        run(undefended(overrides, cfg), folder / BASELINE)
        write_report(folder)


def can_resume(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether ``folder`` has a checkpoint of the run that ``config`` describes."""
    try:
        saved, _ = read_checkpoint(folder)
    except ConfigError as error:
        logger.info("%s", error)
        return False
    return hash_config(saved.config) == hash_config(config)


def is_done(folder: Path, config: Mapping[str, Any], *, sweep: bool = False) -> bool:
    """Return whether ``folder`` holds the complete job that ``config`` describes, including its report."""
    run = find_run(folder)
    if run is None or run.status != "finished" or run.config_hash != hash_config(config):
        return False
    if _wants_baseline(config, sweep=sweep):
        baseline = find_run(folder / BASELINE)
        if baseline is None or baseline.status != "finished":
            return False
    return run.report.is_file()


def _with_past(overrides: list[str]) -> list[str]:
    """Return the overrides after those of the run to resume.

    The folder is untrusted: its overrides may name only callables of ``conf/`` and contain no
    references, unless the environment allows it (`trust_of`) or the same key is overridden again.
    """
    resume = [override for override in overrides if key_of(override) == "resume"]
    folder = compose(join_overrides(resume)).resume
    if folder is None:
        return overrides
    given = {key_of(override) for override in overrides}
    saved, _ = read_checkpoint(Path(folder))
    kept = [override for override in saved.overrides if key_of(override) not in given]
    trust = trust_of({})
    typed = {str(o.value()) for o in parse_overrides(overrides) if o.key_or_group.endswith(TARGET)}
    consent = replace(trust, targets=trust.targets | typed, own=join_overrides(overrides))
    try:
        compose_sent(join_overrides(kept), consent, places=True)
    except ConfigError as error:
        raise ConfigError(
            f"resume: {folder}: {error}; or give the setting yourself, beside resume=…"
        ) from error
    return [*kept, *overrides]


def _wants_baseline(config: Mapping[str, Any], *, sweep: bool) -> bool:
    wanted = not sweep if config["baseline"] == "auto" else config["baseline"]
    return bool(wanted) and not _is_baseline(config)


def _is_baseline(config: Mapping[str, Any]) -> bool:
    """Return whether a run's updates are unprotected."""
    choices = config["choices"]
    unprotected = (choices["dp"], choices["secagg"]) == ("none", "off")
    return unprotected and choices["defense"] == baseline_of(OmegaConf.create(dict(config)))
