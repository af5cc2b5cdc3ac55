"""``fl-app choose data=… model=…``: try defenses on the user's own task and recommend one, or none."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fl_app.cli.before_hydra import check_overrides, refuse_sweep
from fl_app.cli.guard import INTERRUPTED
from fl_app.cli.own_code import add_option, import_from_here, search_in
from fl_app.config.compose import ConfigError, compose, join_overrides, key_of, nearest, top_keys
from fl_app.console.logs import show_logs
from fl_app.experiments.choosing.candidates import BASELINE, chosen
from fl_app.experiments.choosing.evidence import Evidence, Measure, gather
from fl_app.experiments.choosing.trial import Trial, Tried, run_trial
from fl_app.experiments.choosing.verdicts import Choice, Limits, choose
from fl_app.report import compare_runs
from fl_app.report.data.formats import DASH, format_bytes
from fl_app.results import write_json

_UNITS = {"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9}
_TAKEN = ("defense", "seed", "baseline", "run_dir", "resume")
_SECURE = ("defense=fl_top", "secagg=on", "dp=client")
NOTHING_HOLDS = 3
"""Exit code if no candidate keeps all limits."""
UNDECIDED = 4
"""Exit code if none that was tried does, and there was no time for others."""
DEFAULTS = {
    **{"max_leak": "0.3", "max_loss": "2", "max_bytes": "", "epsilon": ""},
    **{"minutes": "30", "seeds": "3", "jobs": "1", "defenses": "", "into": "multirun/choose"},
}


def main(arguments: list[str] | None = None) -> None:
    """Run ``choose [limits] [key=value …]``."""
    args = _parser().parse_intermixed_args(arguments)
    split = [(word, *word.partition("=")[::2]) for word in args.words]
    own = DEFAULTS | {key: value for _, key, value in split if key in DEFAULTS}
    overrides = [*search_in(args.config_dir), *(word for word, key, _ in split if key not in DEFAULTS)]
    import_from_here()
    refuse_sweep(overrides)
    if taken := {key_of(override).split(".")[0] for override in overrides} & set(_TAKEN):
        raise ConfigError(f"{', '.join(sorted(taken))}: leave it out, choose sets it for each candidate")
    misspelt = [key for key in map(key_of, overrides) if nearest(key, [*DEFAULTS]) and key not in top_keys()]
    if misspelt:
        raise ConfigError(f"{misspelt[0]}: unknown key{nearest(misspelt[0], [*DEFAULTS])}")
    overrides = _with_attack(overrides)
    check_overrides([*overrides, "defense=none"])
    epsilon = _number(own, "epsilon") if own["epsilon"] else None
    if epsilon == 0:
        raise ConfigError("epsilon: expected a number above 0, got 0")
    limits = Limits(
        leak=_number(own, "max_leak"),
        loss=_number(own, "max_loss"),
        bytes=_bytes(own["max_bytes"]) if own["max_bytes"] else None,
        epsilon=epsilon,
    )
    names = [name for name in own["defenses"].split(",") if name]
    trial = Trial(
        candidates=chosen(names, epsilon),
        overrides=overrides,
        seeds=_whole(own, "seeds"),
        minutes=_number(own, "minutes"),
        root=Path(own["into"]),
        jobs=_whole(own, "jobs"),
    )
    show_logs(False)
    _run(trial, limits)


def _run(trial: Trial, limits: Limits) -> None:
    try:
        tried = run_trial(trial, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        print(
            f"fl-app choose: interrupted; finished runs are in {trial.root.resolve()}; "
            "the same command goes on with the others",
            file=sys.stderr,
        )
        sys.exit(INTERRUPTED)
    bare = tried.runs[BASELINE]
    evidence = {name: gather(runs, bare) for name, runs in tried.runs.items() if runs}
    if BASELINE not in evidence:
        why = tried.failed.get(BASELINE, "the time budget was too short; give more minutes=")
        raise ConfigError(f"the run without a defense did not finish: {why}")
    choice = choose(evidence, limits)
    lost = dict(choice.lost) | {name: reason for name, reason in tried.failed.items() if name not in evidence}
    lost |= dict.fromkeys(_untried(trial, tried), "no time")
    console = Console()
    console.print(_table(evidence))
    if tried.left:
        print(f"the time budget left out {tried.left} runs; the same command with more minutes= goes on")
    page = compare_runs([run.folder for runs in tried.runs.values() for run in runs.values()], trial.root)
    lines = recommendation(trial, choice, lost, evidence, limits, _untried(trial, tried))
    print("\n".join(lines))
    print(f"comparison: {page.resolve()}")
    untried = _untried(trial, tried)
    content = {
        **{"recommended": choice.best, "weak_attack": choice.weak, "untried": untried},
        **{"lost": lost, "words": lines},
    }
    write_json(trial.root / "choice.json", content, ascii_only=False)
    if choice.best is None:
        sys.exit(UNDECIDED if untried else NOTHING_HOLDS)


def recommendation(
    trial: Trial,
    choice: Choice,
    lost: Mapping[str, str],
    evidence: Mapping[str, Evidence],
    limits: Limits,
    untried: Sequence[str],
) -> list[str]:
    """Return the recommendation, how to use it, and why the others lost."""
    own = [o for o in trial.overrides if not o.startswith(("attack", "audit"))]
    reasons = [f"  {name}: {reason}" for name, reason in lost.items()]
    if choice.weak:
        leak = _shown(evidence[BASELINE].leak, 3)
        return [
            f"no recommendation: without a defense this attack reaches SSIM {leak} alone, so that a low leak",
            "proves nothing; attack longer (attack.steps=…) or on a smaller batch (audit.batch_size=1).",
            *(["candidates that break other limits:", *reasons] if reasons else []),
        ]
    if choice.best is None and untried:
        return [
            "no recommendation yet: none that was tried is shown to hold, and time ran out before "
            f"{', '.join(untried)};",
            "the same command with more minutes= goes on. So far:",
            *reasons,
        ]
    if choice.best is None:
        bound = [] if limits.epsilon is None else [f"dp.epsilon={limits.epsilon:g}"]
        return [
            "none of these is shown to hold: use secure aggregation with differential privacy",
            f"  command: {shlex.join(['fl-app', *own, *_SECURE, *bound])}",
            "  in your app: fl_app.strategies.SecureAggregation with ClientLevel, docs/library.md",
            "why each lost:",
            *reasons,
        ]
    best = next(one for one in trial.candidates if one.name == choice.best)
    found = evidence[best.name]
    epsilon = "" if found.epsilon is None else f", ε {found.epsilon:.3g}"
    return [
        f"recommended: {best.name}: leak SSIM {_shown(found.leak, 3)}, loss {_shown(found.loss, 1)} points, "
        f"{format_bytes(found.bytes)} a round{epsilon} (95 %, {found.seeds} seeds)",
        f"  command: {shlex.join(['fl-app', *own, *best.overrides])}",
        *([f"  in your Flower app: {best.use}"] if best.use else []),
        *(["why the others lost:", *reasons] if reasons else []),
    ]


def _untried(trial: Trial, tried: Tried) -> list[str]:
    names = [one.name for one in trial.candidates]
    return [name for name in names if not tried.runs[name] and name not in tried.failed]


def _with_attack(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with the attack of a choice where they name none: both forms, several clients."""
    keys = {key_of(override) for override in overrides}
    clients = compose(join_overrides([*overrides, "defense=none"])).clients
    added = [] if "attack" in keys else ["attack=ig"]
    added += [] if "attack.clients" in keys else [f"attack.clients={list(range(min(4, clients)))}"]
    added += [] if "audit.contrast" in keys else ["audit.contrast=false"]
    return [*overrides, *(word.replace(" ", "") for word in added)]


def _table(evidence: Mapping[str, Evidence]) -> Table:
    table = Table(title="plain and adaptive attacker, the better one counts; ± 95 %", title_justify="left")
    for title in ("defense", "leak (SSIM)", "loss (points)", "bytes / round", "ε", "seeds"):
        table.add_column(title, justify="left" if title == "defense" else "right", no_wrap=True)
    for name, found in evidence.items():
        epsilon = DASH if found.epsilon is None else f"{found.epsilon:.3g}"
        shown = [name, _shown(found.leak, 3), _shown(found.loss, 1), format_bytes(found.bytes), epsilon]
        table.add_row(*map(Text, [*shown, str(found.seeds)]))
    return table


def _shown(measure: Measure | None, digits: int) -> str:
    return DASH if measure is None else f"{measure.mean:.{digits}f} ± {measure.half:.{digits}f}"


def _number(own: Mapping[str, str], key: str) -> float:
    try:
        value = float(own[key])
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ConfigError(f"{key}: expected a number of at least 0, got {own[key]!r}")
    return value


def _whole(own: Mapping[str, str], key: str) -> int:
    if not own[key].isdecimal() or int(own[key]) < 1:
        raise ConfigError(f"{key}: expected a whole number of at least 1, got {own[key]!r}")
    return int(own[key])


def _bytes(text: str) -> float:
    """Read a number of bytes with a decimal unit, such as 250kB."""
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) *([a-zA-Z]*)", text)
    if found is None or found[2].lower() not in _UNITS:
        raise ConfigError(f"max_bytes: expected bytes such as 250kB or 1.5MB, got {text!r}")
    return float(found[1]) * _UNITS[found[2].lower()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-app choose",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Try defenses on your data and model, attack each plain and adaptive, recommend one.\n\n"
        "limits:  max_leak=0.3 (SSIM)  max_loss=2 (points)  max_bytes=250kB (a round)  epsilon=8\n"
        "effort:  minutes=30  seeds=3  jobs=1  defenses=topk-20,dgp  into=multirun/choose\n"
        "exit codes: 3, no candidate keeps all limits; 4, nor do those that there was time for. "
        "The same command resumes.",
    )
    parser.add_argument(
        "words", nargs="*", metavar="key=value", help="limits, effort, and settings of fl-app"
    )
    add_option(parser)
    return parser
