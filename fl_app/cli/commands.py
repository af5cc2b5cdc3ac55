"""The commands: ``fl-app`` (Hydra), ``flower-simulation`` (Flower's old one), reports, and new attacks."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from fl_app import server_app
from fl_app.cli import attack as attack_command
from fl_app.config.compose import (
    CONF_DIR,
    CONFIG_NAME,
    ConfigError,
    UnknownName,
    compose,
    join_overrides,
    key_of,
    parse_overrides,
    split_overrides,
    study_of,
    swept_by_experiment,
)
from fl_app.console.logs import show_logs
from fl_app.experiments.job import run_job
from fl_app.experiments.site import build_site, write_results
from fl_app.experiments.studies import DEFAULT_SCALE, StudyOrder, run_study, table_for_terminal
from fl_app.experiments.sweep import Cell, run_sweep
from fl_app.flower import ENGINES, fuse, read_app, run_app
from fl_app.report import (
    LEAKAGES,
    compare_runs,
    comparison_rows,
    comparison_table,
    find_runs,
    summary_lines,
    write_frontier,
    write_report,
)
from fl_app.wire.words import printable

_SWEEP = {"-m", "--multirun", "hydra.mode=MULTIRUN"}
_OWN = ("scale", "parts", "jobs")
"""Arguments that are no settings of a run: which cells, and how many at a time."""
BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


def main() -> None:
    """Run ``fl-app key=value …``; ``-m`` sweeps over comma-separated values."""
    _guard("fl-app", _hydra_main)


def simulate() -> None:
    """Run ``flower-simulation --app FOLDER``: any Flower app, in this process or on Ray."""
    _guard("flower-simulation", _simulate)


def report() -> None:
    """Run ``fl-app-report DIR…``: rebuild reports, and compare when there are several runs."""
    _guard("fl-app-report", _report)


def attack() -> None:
    """Run ``fl-app-attack RUN attack=…``: attack a finished run again, without training."""
    _guard(attack_command.COMMAND, _attack)


def _guard(name: str, command: Callable[[], None]) -> None:
    """Turn what the user can mend into one line, and an interruption into exit code 130."""
    try:
        command()
    except KeyboardInterrupt:
        print(f"{name}: interrupted; what there was by then is in the run's folder", file=sys.stderr)
        sys.exit(130)
    except (ConfigError, ValueError, FileNotFoundError, TimeoutError) as error:
        logging.getLogger(__name__).debug("failed", exc_info=True)
        # it may quote a folder that a stranger made
        print(printable(f"{name}: {error}", lines=True), file=sys.stderr)
        sys.exit(2)


def _hydra_main() -> None:
    own, sys.argv[1:] = _own_arguments(sys.argv[1:])
    overrides = [arg for arg in sys.argv[1:] if "=" in arg and not arg.startswith("-")]
    sweeps = not _SWEEP.isdisjoint(sys.argv[1:])
    experiments = _experiments(overrides) if sweeps and _SWEEP.issuperset(_options(sys.argv[1:])) else []
    studies = {name: study for name in experiments if (study := study_of(name)) is not None}
    if len(experiments) == 1 and studies:
        _run_study(experiments[0], studies[experiments[0]], own, overrides)
        return
    if studies:
        raise ConfigError(
            f"experiment: {', '.join(studies)}: a study runs alone, got {', '.join(experiments)}"
        )
    if wrong := [key for key in own if key != "jobs" or not sweeps]:
        raise ConfigError(f"{wrong[0]}: goes with {'-m' if wrong[0] == 'jobs' else '-m and a study'}")
    if sweeps:
        _check_before_hydra([*_swept_besides(overrides), *overrides])
    else:
        _refuse_sweep(overrides)
        _check_before_hydra(overrides)
    # Hydra would turn an error into its own message and hide an interruption
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    OmegaConf.register_new_resolver("sweep_name", lambda experiment, else_: experiment or else_, replace=True)
    cells: list[Cell] = []

    def job(cfg: DictConfig) -> None:
        state = HydraConfig.get()
        show_logs(bool(state.verbose))
        if state.mode == RunMode.MULTIRUN:
            cells.append(_cell(state))
        else:
            planned = Path(state.runtime.output_dir)
            folder = run_job(list(state.overrides.task), folder=planned)
            if folder.resolve() != planned and not any(planned.iterdir()):
                planned.rmdir()  # Hydra made it, and the run went elsewhere
            _announce(folder)

    hydra.main(config_path=str(CONF_DIR), config_name=CONFIG_NAME, version_base="1.3")(job)()
    if cells:
        keys = [key_of(override) for override in overrides]
        named = "experiment" in keys or "hydra.sweep.dir" in keys
        _sweep(cells, named=named, jobs=_jobs(own.get("jobs", "1")))


def _own_arguments(arguments: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return what is not for Hydra, by key, and the rest."""
    split = [(argument, *argument.partition("=")[::2]) for argument in arguments]
    own = {key: value for argument, key, value in split if key in _OWN and "=" in argument}
    return own, [argument for argument, key, _ in split if key not in own]


def _options(arguments: list[str]) -> list[str]:
    return [argument for argument in arguments if argument.startswith("-")]


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"jobs: must be a whole number of at least 1, got {text!r}")
    return int(text)


def _experiments(overrides: list[str]) -> list[str]:
    values = [o.partition("=")[2] for o in overrides if o.partition("=")[0] == "experiment"]
    return [name for value in values[-1:] for name in value.split(",") if name]


def _run_study(name: str, study: dict[str, Any], own: dict[str, str], overrides: list[str]) -> None:
    """Run a study's cells, and show its table and what became of its claims."""
    hydras = {
        key: value for key, _, value in (o.partition("=") for o in overrides) if key.startswith("hydra")
    }
    if wrong := [key for key in hydras if key not in ("hydra.sweep.dir", "hydra.verbose", "hydra.mode")]:
        raise ConfigError(
            f"{wrong[0]}: a study is not run by Hydra; expected jobs=N or hydra.sweep.dir=FOLDER"
        )
    show_logs(hydras.get("hydra.verbose", "false").lower() == "true")
    order = StudyOrder(
        name=name,
        raw=study,
        command=shlex.join(["fl-app", "-m", *(f"{key}={value}" for key, value in own.items()), *overrides]),
        scale=own.get("scale", DEFAULT_SCALE),
        parts=tuple(part for part in own.get("parts", "").split(",") if part),
        overrides=tuple(o for o in overrides if not o.startswith(("experiment=", "hydra"))),
        root=Path(hydras.get("hydra.sweep.dir", StudyOrder.root)),
        jobs=_jobs(own.get("jobs", "1")),
    )
    try:
        end = run_study(order, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        print("fl-app: interrupted; the same command goes on with what is not finished", file=sys.stderr)
        sys.exit(130)
    console = Console()
    if end.found.lines:
        console.print(table_for_terminal(end.found.study, end.found.lines, console.width))
    for verdict in end.found.verdicts:
        console.print(f"{verdict.claim.text}: {verdict.words}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"study: {end.page.resolve()}", markup=False, soft_wrap=True)
    _end_with_failures(end.failed, len(end.found.cells), "the same command")


def _refuse_sweep(overrides: list[str]) -> None:
    for override in parse_overrides(overrides):
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: several values are a sweep; expected -m with it")


def _swept_besides(overrides: list[str]) -> list[str]:
    """Return what an experiment sweeps over and the command line does not set."""
    parsed = parse_overrides(overrides)
    single = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
    keys = {o.get_key_element() for o in parsed}
    return [params for params in swept_by_experiment(single) if params.partition("=")[0] not in keys]


def _check_before_hydra(overrides: list[str]) -> None:
    """Compose with every value of every sweep, one at a time: our message lists the choices.

    Values that are only refused together are no reason to stop: others may go well.
    """
    parsed = parse_overrides(overrides)
    values = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [str(o.input_line)]
        for o in parsed
        if not o.key_or_group.startswith("hydra")
    ]
    sweeps = any(len(choices) > 1 for choices in values)
    for i, choices in enumerate(values):
        for choice in choices:
            try:
                compose(join_overrides([choice if j == i else firsts[0] for j, firsts in enumerate(values)]))
            except ConfigError as error:
                if not sweeps or isinstance(error, UnknownName):
                    raise


def _cell(state: Any) -> Cell:
    """Return the cell that Hydra would run; it only says which ones there are."""
    if state.sweep.subdir != ".":
        raise ConfigError("hydra.sweep.subdir: a cell's folder is named by its config; set hydra.sweep.dir")
    if state.launcher._target_ != BASIC_LAUNCHER:
        raise ConfigError(
            "hydra/launcher: expected basic; jobs=N runs N cells at a time, "
            f"and the same command, started once more, shares the work; got {state.launcher._target_}"
        )
    return Cell(list(state.overrides.task), Path(state.runtime.output_dir))


def _sweep(cells: list[Cell], *, named: bool, jobs: int = 1) -> None:
    """Run all cells and compare those that are finished; ``named``: the same command finds them again."""
    # one folder, unless experiments are swept over
    folder = Path(os.path.commonpath([cell.sweep_folder for cell in cells]))
    place = shlex.quote(f"hydra.sweep.dir={os.path.relpath(folder)}")
    again = "the same command" if named else f"the same command with {place}"
    try:
        end = run_sweep(cells, lambda line: print(line, flush=True), jobs=jobs)
    except KeyboardInterrupt:
        print(f"fl-app: interrupted; {again} goes on with what is not finished", file=sys.stderr)
        sys.exit(130)
    if end.finished:
        console = Console()
        console.print(comparison_table(comparison_rows(end.finished)))
        console.print(f"comparison: {compare_runs(end.finished, folder)}", soft_wrap=True)
    _end_with_failures(end.failed, len(cells), again)


def _end_with_failures(failed: Sequence[str], cells: int, again: str) -> None:
    """Name the cells that failed, if there are some, and end with exit code 1."""
    if failed:
        print(
            f"fl-app: {len(failed)} of {cells} cells failed; {again} runs them again:",
            *failed,
            sep="\n  ",
            file=sys.stderr,
        )
        sys.exit(1)


def _simulate() -> None:
    args = _simulation_arguments().parse_args()
    show_logs(args.verbose)
    app = read_app(Path(args.app))
    server, client = app.load()
    run_config = fuse(app.config, args.run_config)
    backend = _json(args.backend_config) if args.backend_config else {}
    if server is server_app.app:
        overrides = split_overrides(str(run_config["overrides"]))
        overrides += [f"clients={args.num_supernodes}"] if args.num_supernodes is not None else []
        overrides += [f"engine={args.backend}"] if args.backend else []
        _announce(run_job(overrides, backend=backend, verbose=args.verbose))
    elif args.num_supernodes is None:
        raise ValueError("--num-supernodes: this app does not say how many clients it wants; give a number")
    else:
        engine = {"name": args.backend or "inline"} | backend
        run_app(
            server,
            client,
            args.num_supernodes,
            run_config=run_config,
            engine=engine,
            verbose=args.verbose,
        )


def _simulation_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flower-simulation", description="Run a Flower app as a simulation."
    )
    parser.add_argument(
        "--app", required=True, help="the folder with pyproject.toml, or a package folder in it"
    )
    parser.add_argument("--num-supernodes", type=int, help="how many clients; default: what the app says")
    parser.add_argument("--backend", choices=ENGINES, help="inline: in this process (default); ray: Flower's")
    parser.add_argument("--backend-config", help="JSON for Ray: client_resources, init_args, actor")
    parser.add_argument("--run-config", action="append", default=[], help="'key=value …' or a TOML file")
    parser.add_argument("--verbose", action="store_true", help="show logs")
    return parser


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"--backend-config: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"--backend-config: expected an object, got {text}")
    return value


def _announce(folder: Path) -> None:
    lines = [*summary_lines(folder), f"report: {folder.resolve() / 'report.html'}"]
    print("\n".join(map(printable, lines)), flush=True)


def _attack() -> None:
    args = attack_command.arguments().parse_args()
    _check_before_hydra(args.overrides)
    attack_command.attack_again(args.run, args.overrides)
    _announce(args.run)


def _report() -> None:
    args = _report_arguments().parse_args()
    if args.site is not None:
        page = build_site(args.paths, args.site, lambda line: print(line, flush=True))
        print(f"site: {page}", flush=True)
        return
    if args.results is not None:
        print(f"results: {write_results(args.paths, args.results)}", flush=True)
        return
    runs = find_runs(args.paths)
    if args.frontier is not None:
        for path in write_frontier(runs, args.frontier, by=args.leak):
            print(printable(f"frontier: {path}"))
        return
    for run in runs:
        print(printable(f"report: {write_report(run)}"), flush=True)
    Console().print(comparison_table(comparison_rows(runs)))
    if len(runs) > 1:
        print(printable(f"comparison: {compare_runs(runs, args.out)}"))


def _report_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fl-app-report", description="Rebuild and compare reports of runs.")
    parser.add_argument("paths", nargs="+", type=Path, help="run folders, or folders that hold some")
    parser.add_argument("--out", type=Path, default=Path("comparison.html"), help="page for several runs")
    parser.add_argument(
        "--site", type=Path, metavar="FOLDER", help="only build a site of all experiments and runs"
    )
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="only write all experiments into one Markdown file"
    )
    parser.add_argument(
        "--frontier", type=Path, metavar="FILE", help="only draw accuracy against leakage, as PNG and SVG"
    )
    parser.add_argument(
        "--leak",
        choices=LEAKAGES,
        default="mean",
        help="of the frontier: mean SSIM of the worse attack (default), or SSIM of the attacker's best image",
    )
    return parser
