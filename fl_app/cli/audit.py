"""The command ``fl-app-audit --app FOLDER``: what any Flower app leaks, and whether its claims are true."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fl_app.audit import AuditOptions, audit_app
from fl_app.audit.annex import evidence_of_audit
from fl_app.audit.findings import SEVERITIES, at_least
from fl_app.audit.page import write_page
from fl_app.audit.sarif import write_sarif
from fl_app.cli.own_code import import_from_here
from fl_app.console.words import printable
from fl_app.flower import ENGINES
from fl_app.mods.catalogue import mod_named
from fl_app.report.annex import write_annex

FOUND = 3
"""Exit code where findings are as severe as ``--fail-on``."""
NOT_UNDERSTOOD = 4
"""Exit code where ``--fail-on`` was given and the app was not understood."""


def main(arguments: list[str] | None = None) -> None:
    """Audit the app that the arguments name; write the report."""
    args = _parser().parse_args(arguments)
    options = AuditOptions(
        supernodes=args.supernodes,
        rounds=args.rounds,
        run_config=tuple(args.run_config),
        data=dict(_named_folder(text) for text in args.data),
        model=args.model,
        backend=args.backend,
        attack_seconds=args.attack_seconds,
        planted_runs=0 if args.no_exits else args.planted_runs,
        planted_seconds=args.exit_seconds,
        seed=args.seed,
    )
    names = [name for given in args.defense for name in given.split(",")]
    defenses = {name: [] if name == "none" else [mod_named(name)] for name in names}
    import_from_here()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with (out / "app.log").open("w", encoding="utf-8") as log:
        report = audit_app(args.app.resolve(), options, log=log, defenses=defenses)
    write_page(report, out / "audit.html")
    report.write_json(out / "audit.json")
    write_sarif(report, out / "audit.sarif")
    print(printable(report.verdict()))
    for finding in report.findings:
        print(printable(f"{finding.severity}: {finding.file or '(measured)'}: {finding.sentence}"))
    if args.dpia is not None:
        for path in write_annex(evidence_of_audit(report), args.dpia):
            print(printable(f"annex: {path}"))
    print(printable(f"report: {args.out / 'audit.html'}"), flush=True)
    if args.fail_on and at_least(report.findings, args.fail_on):
        sys.exit(FOUND)
    if args.fail_on and not report.understood:
        sys.exit(NOT_UNDERSTOOD)


def _named_folder(text: str) -> tuple[str, Path]:
    name, equals, place = text.partition("=")
    if not (name and equals and place):
        raise ValueError(f"--data: expected HUB_NAME=FOLDER, got {text!r}")
    if not Path(place).exists():
        raise ValueError(f"--data: {name}: there is no {place}")
    return name, Path(place).resolve()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-app-audit",
        description="Run a Flower app, unedited, and report what it leaks. It runs in this process, with the "
        "rights of this user: audit code that you would also run.",
        epilog=f"Exit codes: 0 done; 2 a mistake in the arguments or the app; {FOUND} findings as severe as "
        f"--fail-on; {NOT_UNDERSTOOD} not understood, with --fail-on.",
    )
    parser.add_argument(
        "--app",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="the folder with pyproject.toml, or a bundle of flwr build (.fab)",
    )
    parser.add_argument("--supernodes", type=int, metavar="N", help="clients; default: the app's own, or 2")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="audited rounds (default: 2)")
    parser.add_argument("--run-config", action="append", default=[], help="'key=value …' or a TOML file")
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="HUB_NAME=FOLDER",
        help="read this hub data set from an image folder, CSV or text file",
    )
    parser.add_argument("--model", metavar="MODULE:FACTORY", help="the model, if it is not found")
    parser.add_argument(
        "--backend", choices=ENGINES, default="inline", help="inline: Ray's clients cannot be watched"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("audited"), metavar="FOLDER", help="default: audited"
    )
    parser.add_argument(
        "--defense",
        action="append",
        default=[],
        metavar="NAMES",
        help="also run the app with each of these mods around its clients, such as none,topk,dgp",
    )
    parser.add_argument(
        "--dpia",
        type=Path,
        metavar="FILE",
        help="also write the annex of an impact assessment: .md or .html; both without an ending",
    )
    parser.add_argument("--fail-on", choices=SEVERITIES, help="exit with an error on findings this severe")
    parser.add_argument("--attack-seconds", type=float, default=30.0, metavar="S", help="longest search (30)")
    parser.add_argument(
        "--planted-runs", type=int, default=24, metavar="N", help="calls with planted bits (24)"
    )
    parser.add_argument(
        "--exit-seconds", type=float, default=180.0, metavar="S", help="seconds of all these calls (180)"
    )
    parser.add_argument("--no-exits", action="store_true", help="leave out the exits")
    parser.add_argument("--seed", type=int, default=0)
    return parser
