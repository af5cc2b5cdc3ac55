"""Runs side by side: seeds of one configuration become one row with mean and standard deviation."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fl_app.report.data.formats import (
    DASH,
    format_bytes,
    format_factor,
    format_number,
)
from fl_app.report.data.scores import LPIPS, PSNR, SSIM, lacks_lpips, mean_of, mean_score, worst_score
from fl_app.report.data.update_kinds import as_sent, of_update
from fl_app.results import Attack, Run, load_run

_OF_ONE_RUN = frozenset({"seed", "out", "run_dir", "output_dir"})
"""Settings that name a repetition or its place on disk, not a different experiment."""


class Spread(NamedTuple):
    """A value over several seeds; ``std`` is None for a single one."""

    mean: float
    std: float | None


class Leak(NamedTuple):
    """Scores on one kind of update: of the best image for the attacker, and the mean over all images."""

    worst: Mapping[str, Spread | None]
    mean: Mapping[str, Spread | None]
    lpips_missing: bool
    """Images were scored, LPIPS was not."""


@dataclass(frozen=True)
class ComparisonRow:
    """All runs that differ in nothing but the seed."""

    runs: tuple[Run, ...]
    defense: str
    model: str
    data: str
    seeds: tuple[str, ...]
    status: str
    differs: str
    """Settings that tell this row from others of the same defense, model and data."""
    accuracy: Spread | None
    best_accuracy: Spread | None
    best_chosen_by: str | None
    """`validation` or `test`: which samples chose the best round."""
    balanced_accuracy: Spread | None
    auroc: Spread | None
    two_classes: bool
    uplink_per_round: Spread | None
    downlink_per_round: Spread | None
    dense_per_round: float | None
    """Each way."""
    undefended: Leak
    defended: Leak
    of_sums: bool
    """Whether ``defended`` is of sums of clients: secure aggregation shows nothing else."""
    epsilon: Spread | None
    epsilon_adjacency: str | None
    """ε against an observer of the models only."""
    epsilon_server: Spread | None
    seconds: Spread | None

    @property
    def label(self) -> str:
        """The name of the row in charts; model and data are added there if they vary."""
        return f"{self.defense}, {self.differs}" if self.differs else self.defense


LEAK_METRICS = (PSNR, SSIM, LPIPS)


def comparison_rows(run_dirs: Iterable[Path | str]) -> list[ComparisonRow]:
    """Read runs and return one row per configuration, in the order of their first run."""
    groups: dict[str, list[Run]] = {}
    for run in map(load_run, run_dirs):
        # a run cut short is not averaged with complete ones
        same = json.dumps([without_seed(run.config), run.status], sort_keys=True, default=str)
        groups.setdefault(same, []).append(run)
    firsts = [runs[0] for runs in groups.values()]
    differences = tell_apart(map(_names, firsts), (without_seed(run.config) for run in firsts))
    return [
        _row(runs, ", ".join(f"{key}={value}" for key, value in differs.items()))
        for runs, differs in zip(groups.values(), differences, strict=True)
    ]


def comparison_table(rows: Sequence[ComparisonRow], width: int | None = None) -> Table:
    """Return the rows as a table for a terminal that is ``width`` columns wide; None: as wide as it needs.

    "Leak" is that of the attacker's best image. The second line of a row has the factor to dense
    bytes, and ε against the server. In a narrow terminal columns of numbers are left out, and named
    below the table; names of defenses, models, data and seeds stay.
    """
    numbers = _number_columns(rows)
    for count in range(len(_LEAST_IMPORTANT) + 1):
        left_out = _LEAST_IMPORTANT[:count]
        table = _table(rows, {title: cells for title, cells in numbers.items() if title not in left_out})
        if width is None or Console(width=_WIDE).measure(table).minimum <= width:
            break
    if left_out:
        names = ", ".join(title.replace("\n", " ") for title in left_out)
        table.caption = f"too narrow for: {names}"
    return table


def _table(rows: Sequence[ComparisonRow], numbers: Mapping[str, list[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    names = {
        "defense": [row.label if row.status == "finished" else f"{row.label} ({row.status})" for row in rows],
        "model\ndata": [f"{row.model}\n{row.data}" for row in rows],
        "seeds": [", ".join(row.seeds) for row in rows],
    }
    for title, cells in names.items():
        words = [len(word) for cell in (title, *cells) for word in cell.split()]
        table.add_column(title, overflow="fold", min_width=min(max(words), _LONGEST_NAME))
    for title, cells in numbers.items():
        lines = [len(line) for cell in (title, *cells) for line in cell.splitlines()]
        table.add_column(title, justify="right", no_wrap=True, min_width=max(lines))
    for line in zip(*names.values(), *numbers.values(), strict=True):
        # as Text: a label with brackets would be read as rich markup
        table.add_row(*map(Text, line))
    return table


_UP, _DOWN, _WITHOUT, _SECONDS = "up/round\nfactor", "down/round\nfactor", "leak without\ndB, SSIM", "seconds"
_EPSILON = "ε\nserver"
_LEAST_IMPORTANT = (_SECONDS, _DOWN, _WITHOUT, _UP, _EPSILON)
"""Columns that a narrow terminal does without, in this order."""
_WIDE = 10_000
_LONGEST_NAME = 16
"""Columns of the terminal that a word of a name is granted before it is folded."""


def _number_columns(rows: Sequence[ComparisonRow]) -> dict[str, list[str]]:
    accuracy = ["accuracy %", "best, by"]
    accuracy += ["balanced %", "AUROC"] if any(row.two_classes for row in rows) else []
    return {
        "\n".join(accuracy): [_accuracy_cell(row) for row in rows],
        _UP: [_byte_cell(row, row.uplink_per_round) for row in rows],
        _DOWN: [_byte_cell(row, row.downlink_per_round) for row in rows],
        _WITHOUT: [_leak_cell(row.undefended) for row in rows],
        "leak with\ndB, SSIM": [
            _leak_cell(row.defended) + ("\nof a sum" if row.of_sums else "") for row in rows
        ],
        _EPSILON: [_epsilon_cell(row) for row in rows],
        _SECONDS: [format_number(row.seconds and row.seconds.mean, 1) for row in rows],
    }


def without_seed(config: object) -> object:
    """Return the config without what names a repetition or its place on disk."""
    if isinstance(config, Mapping):
        # at any depth: the data's and the partition's seed are the run's, resolved
        return {key: without_seed(value) for key, value in config.items() if key not in _OF_ONE_RUN}
    return [without_seed(item) for item in config] if isinstance(config, list) else config


def tell_apart(names: Iterable[Hashable], configs: Iterable[object]) -> list[dict[str, str]]:
    """Return for each config the settings, by their paths, in which those of the same name differ."""
    named = [(name, _leaves(config)) for name, config in zip(names, configs, strict=True)]
    alike: dict[Hashable, list[dict[str, str]]] = {}
    for name, leaves in named:
        alike.setdefault(name, []).append(leaves)
    varying = {name: _varying(group) for name, group in alike.items()}
    return [{key: leaves.get(key, DASH) for key in varying[name]} for name, leaves in named]


def _varying(group: list[dict[str, str]]) -> list[str]:
    """Return the keys whose values differ within a group, in order."""
    keys = sorted({key for leaves in group for key in leaves})
    return [key for key in keys if len({leaves.get(key) for leaves in group}) > 1]


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """Return mean and sample standard deviation of what is known."""
    known = [value for value in values if value is not None]
    mean = mean_of(known)
    if mean is None:
        return None
    return Spread(mean, statistics.stdev(known) if len(known) > 1 and math.isfinite(mean) else None)


def show_spread(spread: Spread | None, show: Callable[[float | None], str]) -> str:
    """Write ``mean ± std``, the unit once if it is the same, or the mean alone if there is one seed."""
    if spread is None:
        return DASH
    mean, _, unit = show(spread.mean).partition(" ")
    if spread.std is None:
        return f"{mean} {unit}".strip()
    std, _, its_unit = show(spread.std).partition(" ")
    between = "" if unit == its_unit else f" {unit}"
    return f"{mean}{between} ± {std} {its_unit}".strip()


def _leaves(config: object, path: str = "") -> dict[str, str]:
    if not isinstance(config, Mapping):
        return {path: json.dumps(config, ensure_ascii=False, default=str).strip('"')}
    return {
        leaf: value
        for key, inner in config.items()
        for leaf, value in _leaves(inner, f"{path}.{key}" if path else str(key)).items()
    }


def _names(run: Run) -> tuple[str, str, str]:
    return run.defense, run.choice("model") or DASH, run.choice("data") or DASH


def _row(runs: list[Run], differs: str) -> ComparisonRow:
    defense, model, data = _names(runs[0])
    dense = spread_of(_per_round(run, run.totals.dense_bytes) for run in runs)
    return ComparisonRow(
        runs=tuple(runs),
        defense=defense,
        model=model,
        data=data,
        seeds=tuple(run.setting("seed") or DASH for run in runs),
        status=runs[0].status or "status not known",
        differs=differs,
        accuracy=spread_of(run.totals.accuracy for run in runs),
        best_accuracy=spread_of(run.totals.best_accuracy for run in runs),
        best_chosen_by=runs[0].totals.best_chosen_by,
        balanced_accuracy=spread_of(run.totals.balanced_accuracy for run in runs),
        auroc=spread_of(run.totals.auroc for run in runs),
        two_classes=any(run.two_classes for run in runs),
        uplink_per_round=spread_of(_per_round(run, run.totals.uplink_bytes) for run in runs),
        downlink_per_round=spread_of(_per_round(run, run.totals.downlink_bytes) for run in runs),
        dense_per_round=None if dense is None else dense.mean / 2,
        undefended=_leak([of_update(run, "undefended") for run in runs]),
        defended=_leak([as_sent(run) for run in runs]),
        of_sums=any(of_update(run, "sum") for run in runs),
        epsilon=spread_of(run.totals.epsilon for run in runs),
        epsilon_adjacency=runs[0].totals.epsilon_adjacency,
        epsilon_server=spread_of(run.totals.epsilon_server for run in runs),
        seconds=spread_of(run.totals.seconds for run in runs),
    )


def _per_round(run: Run, total: float | None) -> float | None:
    return total / len(run.rounds) if total is not None and run.rounds else None


def _leak(attacks: list[list[Attack]]) -> Leak:
    return Leak(
        worst={m.name: spread_of(worst_score(m, of_run) for of_run in attacks) for m in LEAK_METRICS},
        mean={m.name: spread_of(mean_score(m, of_run) for of_run in attacks) for m in LEAK_METRICS},
        lpips_missing=lacks_lpips(attack for of_run in attacks for attack in of_run),
    )


def _terse(spread: Spread | None, decimals: int, *, scale: float = 1) -> str:
    # ten columns have to fit a terminal: no unit, no spaces
    return show_spread(spread, lambda value: format_number(value and value * scale, decimals)).replace(
        " ", ""
    )


def _accuracy_cell(row: ComparisonRow) -> str:
    chosen_by = {"validation": " val.", "test": " test"}.get(row.best_chosen_by or "", "")
    lines = [_terse(row.accuracy, 1, scale=100), _terse(row.best_accuracy, 1, scale=100) + chosen_by]
    if row.two_classes:
        lines += [_terse(row.balanced_accuracy, 1, scale=100), _terse(row.auroc, 3)]
    return "\n".join(lines)


def _byte_cell(row: ComparisonRow, sent: Spread | None) -> str:
    if sent is None:
        return DASH
    return f"{format_bytes(sent.mean)}\n{format_factor(row.dense_per_round, sent.mean)}"


def _leak_cell(leak: Leak) -> str:
    psnr, ssim = leak.worst["psnr"], leak.worst["ssim"]
    return DASH if psnr is None and ssim is None else f"{_terse(psnr, 2)}\n{_terse(ssim, 3)}"


def _epsilon_cell(row: ComparisonRow) -> str:
    if row.epsilon is None and row.epsilon_server is None:
        return DASH
    return f"{_terse(row.epsilon, 2)}\n{_terse(row.epsilon_server, 2)}"
