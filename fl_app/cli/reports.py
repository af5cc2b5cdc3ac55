"""The command ``fl-app-report DIR…``: rebuild reports, and compare when there are several runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from fl_app.console.words import printable
from fl_app.experiments.site import build_site, write_results
from fl_app.report import (
    LEAKAGES,
    compare_runs,
    comparison_rows,
    comparison_table,
    find_runs,
    write_frontier,
    write_report,
)
from fl_app.report.annex import evidence_of, write_annex
from fl_app.results import load_run


def main(arguments: list[str] | None = None) -> None:
    """Write the pages that the arguments ask for."""
    args = _parser().parse_args(arguments)
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
    if args.dpia is not None:
        if len(runs) != 1:
            raise ValueError(f"fl-app-report: --dpia describes one run, got {len(runs)}")
        for path in write_annex(evidence_of(load_run(runs[0])), args.dpia):
            print(printable(f"annex: {path}"))
        return
    for run in runs:
        print(printable(f"report: {write_report(run)}"), flush=True)
    console = Console()
    console.print(comparison_table(comparison_rows(runs), console.width))
    if len(runs) > 1:
        print(printable(f"comparison: {compare_runs(runs, args.out)}"))


def _parser() -> argparse.ArgumentParser:
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
        "--dpia",
        type=Path,
        metavar="FILE",
        help="only write the annex of an impact assessment: .md or .html; both without an ending",
    )
    parser.add_argument(
        "--leak",
        choices=LEAKAGES,
        default="mean",
        help="of the frontier: mean SSIM of the worse attack (default), or SSIM of the attacker's best image",
    )
    return parser
