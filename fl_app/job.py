"""One job of this project: the run that was asked for, and once more without its defense.

A defended run alone cannot say what its defense cost in accuracy. The baseline
has the same seed, data and clients; it is trained, not attacked, and lies in the
run's folder, where the report finds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from fl_app import client_app, server_app
from fl_app.engine import run_app
from fl_app.overrides import compose, join_overrides, key_of, quote
from fl_app.report import BASELINE, write_report
from fl_app.results import run_folder


def run_job(
    overrides: list[str],
    *,
    folder: Path | None = None,
    sweep: bool = False,
    backend: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> Path:
    """Run what ``overrides`` describe and return the run's folder.

    ``folder`` is where it goes unless the overrides say so themselves. ``backend``
    overrides the engine's own settings.
    """
    cfg = compose(join_overrides(overrides))
    folder = run_folder(cfg.run_dir or folder, cfg.choices.defense)
    engine = cast(dict[str, Any], OmegaConf.to_container(cfg.engine)) | dict(backend or {})
    wants_baseline = not sweep if cfg.baseline == "auto" else cfg.baseline

    def run(wanted: list[str], where: Path) -> None:
        config = {"overrides": join_overrides([*wanted, f"run_dir={quote(where)}"])}
        run_app(
            server_app.app, client_app.app, cfg.clients, run_config=config, engine=engine, verbose=verbose
        )

    run(overrides, folder)
    if wants_baseline and cfg.choices.defense != "none":
        run(_undefended(overrides), folder / BASELINE)
        write_report(folder)
    return folder


def _undefended(overrides: list[str]) -> list[str]:
    """Return the same job without its defense and without an attack."""
    kept = [o for o in overrides if key_of(o).split(".")[0] not in ("defense", "attack", "run_dir")]
    return [*kept, "defense=none", "attack=none"]
