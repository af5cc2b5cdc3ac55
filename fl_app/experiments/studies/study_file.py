"""Definition of a study at one scale, validated when its file is read.

The language is that of docs/studies.md. Settings that depend on the scale are resolved here, so that a
`Study` has one scale only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_app.config.compose import ConfigError, nearest, parse_overrides
from fl_app.experiments.papers import OWN, PAPERS
from fl_app.experiments.studies.metrics import has_rounds, metric_of
from fl_app.experiments.studies.selector import Selector, merge_selectors, parse_selector

DEFAULT_SCALE = "cpu"
COMPARISONS = ("less", "more", "within", "loses_at_most", "at_least", "at_most")
FIGURES = ("lines", "scatter", "bars", "histogram", "distribution", "gallery")
BETTER = ("lower", "higher", "none")
SHOWS = ("number", "percent", "bytes", "words", "original")
SENTENCES = ("words", "original")
MARKS = ("at_most", "at_least", "loses_at_most")

Axes = Mapping[str, Mapping[str, Sequence[str]]]
"""Overrides of each place on an axis, by axis and label."""


@dataclass(frozen=True)
class Search:
    """Values of one setting; each place of a grid takes the one with the highest score."""

    key: str
    values: tuple[str, ...]
    by: Selector
    """Score, on samples that no table scores."""


@dataclass(frozen=True)
class Part:
    """A grid of runs."""

    name: str
    settings: tuple[str, ...]
    """Overrides that all its cells share, the study's own among them."""
    axes: Axes
    search: Search | None = None
    """Search before the cells run, at their first seed."""


@dataclass(frozen=True)
class Entry:
    """One place of the table: a selector, or the reason why it is empty."""

    select: Selector
    without: str | None = None


@dataclass(frozen=True)
class Mark:
    """Condition for a check mark in a place of a line."""

    comparison: str
    bound: float
    base: Selector | None
    """Reference value, of which at most ``bound`` may be lost."""


@dataclass(frozen=True)
class TableRow:
    """One line of the table."""

    name: tuple[str, ...]
    entries: tuple[Entry, ...]
    better: str
    paper: tuple[float | str | None, ...]
    show: str
    digits: int
    mark: Mark | None = None


@dataclass(frozen=True)
class FigureOrder:
    """One requested figure."""

    kind: str
    title: str
    select: Selector
    x: str | Selector | None
    """``round``, an axis, or, for a scatter chart, the selector of x."""
    y: Selector | None
    series: tuple[str, ...]
    limit: int
    more: tuple[Selector, ...] = ()
    """Further metrics of a line chart, beside ``y``."""
    log: bool = False


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper that the cells can test."""

    name: str
    text: str
    comparison: str
    left: Selector
    right: Selector | None
    bound: float | None
    exact: bool
    """True if the numbers are compared directly, without a test."""


@dataclass(frozen=True)
class Study:
    """One table or figure of a paper, at one scale."""

    name: str
    paper: str
    what: str
    title: str
    scale: str
    honest: str
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    """Settings that depend on the available data."""
    parts: tuple[Part, ...]
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    figures: tuple[FigureOrder, ...]
    claims: tuple[Claim, ...]


def scales_of(name: str, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the scales that a study has."""
    scales = _mapping(raw.get("scale"), f"{name}: study.scale")
    if DEFAULT_SCALE not in scales:
        raise ConfigError(
            f"{name}: study.scale: must have {DEFAULT_SCALE}, got {', '.join(scales) or 'none'}"
        )
    return tuple(scales)


def read_study(name: str, raw: Mapping[str, Any], scale: str = DEFAULT_SCALE) -> Study:
    """Read the ``study:`` of the experiment ``name`` at one scale."""
    scales = scales_of(name, raw)
    if scale not in scales:
        raise ConfigError(
            f"scale: {name} has {', '.join(scales)}, got {scale!r}{nearest(str(scale), scales)}"
        )
    return _Reader(name, scale, scales, []).study(raw)


@dataclass
class _Reader:
    """Reader of a study; ``place`` is the current path, for errors."""

    name: str
    scale: str
    scales: tuple[str, ...]
    notes: list[str]

    def study(self, raw: Mapping[str, Any]) -> Study:
        place = f"{self.name}: study"
        _check_keys(
            raw,
            place,
            needed=("paper", "what", "title", "scale", "parts"),
            optional=("honest", "missing", "table", "figures", "claims"),
        )
        if raw["paper"] not in (*PAPERS, OWN):
            choices = ", ".join([*PAPERS, OWN])
            raise ConfigError(f"{place}.paper: must be one of {choices}, got {raw['paper']!r}")
        common = self.overrides(raw["scale"][self.scale], f"{place}.scale.{self.scale}")
        parts = _mapping(raw["parts"], f"{place}.parts")
        if not parts:
            raise ConfigError(f"{place}.parts: expected at least one part")
        columns, rows = self.table(raw.get("table"), f"{place}.table")
        claims = [
            self.claim(node, where) for node, where in self.listed(raw.get("claims"), f"{place}.claims")
        ]
        names = [claim.name for claim in claims]
        if twice := [claim for claim in names if names.count(claim) > 1]:
            raise ConfigError(f"{place}.claims: names must differ, {twice[0]} occurs twice")
        return Study(
            name=self.name,
            paper=raw["paper"],
            what=str(raw["what"]),
            title=str(raw["title"]),
            scale=self.scale,
            honest=self.honest(raw.get("honest", ""), f"{place}.honest"),
            missing=tuple(map(str, _list(raw.get("missing"), f"{place}.missing"))),
            parts=tuple(
                self.part(str(part), node, common, f"{place}.parts.{part}") for part, node in parts.items()
            ),
            columns=columns,
            rows=rows,
            figures=tuple(
                self.figure(node, where)
                for node, where in self.listed(raw.get("figures"), f"{place}.figures")
            ),
            claims=tuple(claims),
            notes=tuple(dict.fromkeys(self.notes)),
        )

    def honest(self, raw: Any, place: str) -> str:
        if not isinstance(raw, Mapping):
            return str(raw)
        self.check_scales(raw, place)
        return str(raw.get(self.scale, ""))

    def check_scales(self, names: Any, place: str) -> None:
        if unknown := [name for name in names if name not in self.scales]:
            raise ConfigError(
                f"{place}: the study's scales are {', '.join(self.scales)}, got {unknown[0]!r}"
                f"{nearest(str(unknown[0]), self.scales)}"
            )

    def listed(self, raw: Any, place: str) -> list[tuple[Mapping[str, Any], str]]:
        """Return the entries of a list for this scale, without the scale's key, and their positions."""
        kept: list[tuple[Mapping[str, Any], str]] = []
        for number, node in enumerate(_list(raw, place)):
            where = f"{place}[{number}]"
            wanted = _mapping(node, where).get("scale", self.scale)
            wanted = wanted if isinstance(wanted, list) else [wanted]
            self.check_scales(wanted, f"{where}.scale")
            if self.scale in wanted:
                kept.append(({key: value for key, value in node.items() if key != "scale"}, where))
        return kept

    def part(self, name: str, raw: Any, common: Sequence[str], place: str) -> Part:
        _check_keys(_mapping(raw, place), place, optional=("set", "scale", "sweep", "search"))
        by_scale = _mapping(raw.get("scale") or {}, f"{place}.scale")
        self.check_scales(by_scale, f"{place}.scale")
        here, where = by_scale.get(self.scale) or [], f"{place}.scale.{self.scale}"
        sweep = dict(_mapping(raw.get("sweep") or {}, f"{place}.sweep"))
        search = raw.get("search")
        if isinstance(here, Mapping):
            _check_keys(here, where, optional=("set", "sweep", "search"))
            sweep |= _mapping(here.get("sweep") or {}, f"{where}.sweep")
            search = here.get("search", search)
            here = here.get("set") or []
        settings = [
            *common,
            *self.overrides(raw.get("set") or [], f"{place}.set"),
            *self.overrides(here, where),
        ]
        axes = {
            str(key): self.axis(str(key), values, f"{place}.sweep.{key}") for key, values in sweep.items()
        }
        return Part(
            name,
            tuple(settings),
            axes,
            None if search is None else self.search(_mapping(search, f"{place}.search"), f"{place}.search"),
        )

    def search(self, raw: Mapping[str, Any], place: str) -> Search:
        _check_keys(raw, place, needed=("key", "values", "by"))
        by = _needs_metric(parse_selector(raw["by"], f"{place}.by"), f"{place}.by")
        if by.metric is None or by.metric.unit != "seed":
            raise ConfigError(f"{place}.by: expected a metric with one number a run, got {raw['by']}")
        values = tuple(map(hydra_value, _list(raw["values"], f"{place}.values")))
        if not values:
            raise ConfigError(f"{place}.values: expected at least one value")
        return Search(str(raw["key"]), values, by)

    def axis(self, key: str, raw: Any, place: str) -> dict[str, list[str]]:
        if isinstance(raw, Mapping):
            axis = {str(label): self.overrides(node, f"{place}.{label}") for label, node in raw.items()}
        else:
            values = [hydra_value(value) for value in _list(raw, place)]
            axis = {value: [f"{key}={value}"] for value in values}
        if not axis:
            raise ConfigError(f"{place}: expected at least one value")
        return axis

    def overrides(self, raw: Any, place: str) -> list[str]:
        """Return overrides; an entry may have two alternatives, chosen by the available data."""
        found: list[str] = []
        for number, node in enumerate(_list(raw, place)):
            where = f"{place}[{number}]"
            if isinstance(node, Mapping):
                _check_keys(node, where, needed=("if_data", "set"), optional=("otherwise",))
                there = (_data_folder() / str(node["if_data"])).exists()
                chosen = self.overrides(node["set" if there else "otherwise"] or [], where)
                if chosen:
                    reason = f"FL_APP_DATA/{node['if_data']} is {'there' if there else 'not there'}"
                    self.notes.append(f"{' '.join(chosen)}: {reason}")
                found += chosen
            elif isinstance(node, str):
                parse_overrides([node])
                found.append(node)
            else:
                raise ConfigError(f"{where}: an override is text, key=value; got {node!r}")
        return found

    def table(self, raw: Any, place: str) -> tuple[tuple[str, ...], tuple[TableRow, ...]]:
        if raw is None:
            return (), ()
        _check_keys(_mapping(raw, place), place, needed=("columns", "rows"))
        columns = {
            str(name): _mapping(node, f"{place}.columns.{name}")
            for name, node in _mapping(raw["columns"], f"{place}.columns").items()
        }
        rows = [self.row(node, columns, where) for node, where in self.listed(raw["rows"], f"{place}.rows")]
        return tuple(columns), tuple(rows)

    def row(self, raw: Mapping[str, Any], columns: Mapping[str, Any], place: str) -> TableRow:
        _check_keys(
            raw,
            place,
            needed=("name", "select", "better"),
            optional=("paper", "without", "show", "digits", "mark"),
        )
        for key, choices in (("better", BETTER), ("show", SHOWS)):
            if raw.get(key, choices[0]) not in choices:
                raise ConfigError(f"{place}.{key}: must be one of {', '.join(choices)}, got {raw[key]!r}")
        if raw.get("show") in SENTENCES and raw["select"].get("metric") != "trace.tokens":
            raise ConfigError(f"{place}.show: words are those of metric: trace.tokens")
        without = _mapping(raw.get("without") or {}, f"{place}.without")
        if unknown := [name for name in without if name not in columns]:
            raise ConfigError(f"{place}.without: {unknown[0]!r} is no column: {', '.join(columns)}")
        paper = _list(raw.get("paper") or [None] * len(columns), f"{place}.paper")
        if len(paper) != len(columns):
            raise ConfigError(
                f"{place}.paper: expected {len(columns)} numbers, one a column, got {len(paper)}"
            )
        entries = []
        for name, fragment in columns.items():
            merged = merge_selectors([(f"{place}.select", raw["select"]), (f"column {name}", fragment)])
            reason = without.get(name)
            select = _needs_metric(parse_selector(merged, f"{place}, column {name}"), place)
            entries.append(Entry(select, None if reason is None else str(reason)))
        title = raw["name"] if isinstance(raw["name"], list) else [raw["name"]]
        show = raw.get("show", SHOWS[0])
        return TableRow(
            name=tuple(map(str, title)),
            entries=tuple(entries),
            better=raw["better"],
            paper=tuple(paper),
            show=show,
            digits=int(raw.get("digits", 1 if show == "percent" else 3)),
            mark=None if raw.get("mark") is None else self.mark(raw["mark"], f"{place}.mark"),
        )

    def mark(self, raw: Any, place: str) -> Mark:
        found = [key for key in MARKS if key in _mapping(raw, place)]
        if len(found) != 1:
            raise ConfigError(
                f"{place}: expected one of {', '.join(MARKS)}, got {', '.join(raw) or 'nothing'}"
            )
        (comparison,) = found
        _check_keys(raw, place, needed=(comparison, *(["from"] if comparison == "loses_at_most" else [])))
        base, where = raw.get("from"), f"{place}.from"
        return Mark(
            comparison,
            _number(raw[comparison], f"{place}.{comparison}"),
            None if base is None else _needs_metric(parse_selector(base, where), where),
        )

    def figure(self, raw: Mapping[str, Any], place: str) -> FigureOrder:
        kind = raw.get("kind")
        if kind not in FIGURES:
            raise ConfigError(f"{place}.kind: must be one of {', '.join(FIGURES)}, got {kind!r}")
        needed = {
            "gallery": ("series",),
            "histogram": ("y",),
            "distribution": ("y",),
            "bars": ("y", "x"),
        }.get(kind, ("x", "y"))
        _check_keys(
            raw,
            place,
            needed=("kind", "title", *needed),
            optional=("select", "series", *{"gallery": ["limit"], "lines": ["log"]}.get(kind, [])),
        )
        select, y, more = _mapping(raw.get("select") or {}, f"{place}.select"), None, list[Selector]()
        x: Any = raw.get("x")
        if kind == "scatter":
            x, y = (
                _needs_metric(
                    parse_selector(merge_selectors([(place, select), (key, raw[key])]), f"{place}.{key}"),
                    place,
                )
                for key in ("x", "y")
            )
        elif "y" in raw:
            several = kind == "lines" and isinstance(raw["y"], list) and raw["y"]
            for name in several or [raw["y"]]:
                metric = metric_of(name, f"{place}.y")
                if x == "round" and metric.unit == "seed" and not has_rounds(metric):
                    raise ConfigError(f"{place}.y: {metric.name} is not measured round by round")
                if (x == "iteration") != metric.traced and kind == "lines":
                    raise ConfigError(f"{place}.y: trace.… and x: iteration go together, got {metric.name}")
                more.append(
                    parse_selector(merge_selectors([(place, select), ("y", {"metric": name})]), place)
                )
            y = more.pop(0)
        series = raw.get("series") or []
        return FigureOrder(
            kind=kind,
            title=str(raw["title"]),
            select=parse_selector(select, f"{place}.select"),
            x=x,
            y=y,
            series=tuple(map(str, series if isinstance(series, list) else [series])),
            limit=int(raw.get("limit", 4)),
            more=tuple(more),
            log=raw.get("log") is True,
        )

    def claim(self, raw: Mapping[str, Any], place: str) -> Claim:
        found = [key for key in COMPARISONS if key in raw]
        if len(found) != 1:
            raise ConfigError(
                f"{place}: a claim has one of {', '.join(COMPARISONS)}; "
                f"got {' and '.join(found) or ', '.join(raw)}"
            )
        (comparison,) = found
        sides: tuple[str, ...] = ("of",) if comparison.startswith("at_") else ("of", "from")
        if comparison in ("less", "more"):
            sides = (comparison, "than")
        _check_keys(raw, place, needed=("name", "text", comparison, *sides), optional=("exact",))
        bound = None if comparison in ("less", "more") else raw[comparison]
        if bound is not None:
            _number(bound, f"{place}.{comparison}")
        selectors = [
            _needs_metric(parse_selector(raw[side], f"{place}.{side}"), f"{place}.{side}") for side in sides
        ]
        exact = raw.get("exact", False)
        if not isinstance(exact, bool):
            raise ConfigError(f"{place}.exact: must be true or false, got {exact!r}")
        if not exact and any(selector.take != "mean" for selector in selectors):
            raise ConfigError(
                f"{place}: take: min or max leaves one number, which no test is about; add exact: true"
            )
        units = {selector.metric.unit for selector in selectors if selector.metric is not None}
        if len(units) > 1:
            raise ConfigError(f"{place}: both sides need the same unit, got {' and '.join(sorted(units))}")
        return Claim(
            name=str(raw["name"]),
            text=str(raw["text"]),
            comparison=comparison,
            left=selectors[0],
            right=selectors[1] if len(selectors) > 1 else None,
            bound=bound,
            exact=exact,
        )


def hydra_value(value: Any) -> str:
    """Write a value of YAML as Hydra reads it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(hydra_value, value))}]"
    return str(value)


def _needs_metric(selector: Selector, place: str) -> Selector:
    if selector.metric is None:
        raise ConfigError(f"{place}: names no metric")
    if selector.round is not None and selector.metric.unit == "seed" and not has_rounds(selector.metric):
        raise ConfigError(f"{place}.round: {selector.metric.name} is not measured round by round")
    if selector.round == "best" and selector.metric.unit != "seed":
        raise ConfigError(f"{place}.round: best is a round of training; attacks have numbers, or last")
    if isinstance(selector.round, tuple) and selector.metric.unit == "seed":
        raise ConfigError(f"{place}.round: several are of attacked updates, not of {selector.metric.name}")
    return selector


def _check_keys(
    raw: Mapping[str, Any], place: str, *, needed: Sequence[str] = (), optional: Sequence[str] = ()
) -> None:
    known = [*needed, *optional]
    for key in raw:
        if key not in known:
            raise ConfigError(
                f"{place}: unknown key {key!r}; there are {', '.join(known)}{nearest(str(key), known)}"
            )
    if missing := [key for key in needed if key not in raw]:
        raise ConfigError(f"{place}: {missing[0]} is missing")


def _mapping(raw: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{place}: expected key: value, got {raw!r}")
    return raw


def _number(raw: Any, place: str) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise ConfigError(f"{place}: must be a number, got {raw!r}")
    return raw


def _list(raw: Any, place: str) -> list[Any]:
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise ConfigError(f"{place}: expected a list, got {raw!r}")
    return raw


def _data_folder() -> Path:
    return Path(os.environ.get("FL_APP_DATA", "data"))
