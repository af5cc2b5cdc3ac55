"""Table in the paper's layout: our value in every place, with the paper's number beside it."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fl_app.experiments.studies.claims import taken
from fl_app.experiments.studies.measured import GAVE_UP, Measured, select, sentence
from fl_app.experiments.studies.study_file import SENTENCES, Entry, Study, TableRow
from fl_app.report.data.formats import DASH, format_bytes, format_number, format_percent
from fl_app.report.markdown import markdown_rows
from fl_app.results.study import Place, StudyLine, StudyTable

_LONG = 1e5
_NAMED = 6
"""Largest number of lines that a remark names."""
SIGNS = {None: "", True: "✓ ", False: "✗ "}
_NAME_WIDTH, _PLACE_WIDTH = 8, 7
"""Least widths of the terminal's columns."""


_Filled = tuple[str, str, Place]
"""Name of a line, name of a column, and the value there."""


@dataclass(frozen=True)
class Line:
    """One line of the table, filled."""

    row: TableRow
    ours: tuple[Place, ...]

    @property
    def best(self) -> int | None:
        """Best column by our numbers; None if the line has no best one, or several."""
        known = [place.mean for place in self.ours if place.mean is not None]
        if self.row.better == "none" or len(known) < 2:
            return None
        choose: Callable[[Sequence[float]], float] = min if self.row.better == "lower" else max
        found = [i for i, place in enumerate(self.ours) if place.mean == choose(known)]
        return found[0] if len(found) == 1 else None


def fill_table(study: Study, cells: Sequence[Measured]) -> list[Line]:
    """Read every place of the table."""
    return [
        Line(row, tuple(_marked_place(row, _place(entry, cells, row.show), cells) for entry in row.entries))
        for row in study.rows
    ]


class Written(Protocol):
    """A line that defines the format of its numbers."""

    @property
    def show(self) -> str:
        """Format: a number, a percentage, or bytes."""

    @property
    def digits(self) -> int:
        """Number of decimals."""


def show_value(row: Written, value: float | str | None) -> str:
    """Format a number as its line defines; the paper may have words instead."""
    if isinstance(value, str):
        return value
    if row.show == "percent":
        return format_percent(value) if row.digits == 1 else f"{_decimals(value, row.digits, 100)} %"
    return format_bytes(value) if row.show == "bytes" else _decimals(value, row.digits)


def show_place(row: TableRow, place: Place) -> str:
    """Format our value: mean and standard deviation, or the reason why it is missing."""
    sign = SIGNS[place.mark]
    if place.mean is None or row.show in SENTENCES:
        return place.words or sign.strip() or DASH
    spread = "" if place.sd is None else f" ± {show_value(row, place.sd)}"
    return sign + show_value(row, place.mean).removesuffix(" %" if spread else "") + spread


def table_markdown(study: Study, lines: Sequence[Line]) -> str:
    """Return the table as Markdown, with its gaps listed below it."""
    names = _name_columns(lines)
    header = [*[""] * names, *study.columns]
    rows = [header, ["---"] * names + ["---:"] * len(study.columns)]
    for line in lines:
        cells = [
            _bold(show_place(line.row, place), number == line.best) + _beside(line.row, paper)
            for number, (place, paper) in enumerate(zip(line.ours, line.row.paper, strict=True))
        ]
        rows.append([*_names(line, names), *cells])
    text = markdown_rows(rows)
    remarks = "\n".join(f"- {remark}" for remark in table_remarks(study, lines))
    return f"{text}\n\n{remarks}\n" if remarks else f"{text}\n"


def table_csv(study: Study, lines: Sequence[Line]) -> str:
    """Return a line for every place of the table."""
    buffer = io.StringIO()
    fields = ["mean", "sd", "n", "unit", "form", "take", "not_found", "missing", "mark"]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["row", "column", "better", *fields, "paper"])
    for line in lines:
        for column, place, paper in zip(study.columns, line.ours, line.row.paper, strict=True):
            values = [getattr(place, name) for name in fields]
            writer.writerow([" ".join(line.row.name), column, line.row.better, *values, paper])
    return buffer.getvalue()


def table_for_terminal(study: Study, lines: Sequence[Line], width: int) -> Group:
    """Return the table for the terminal: our means only, with the paper's numbers below them.

    Columns that do not fit ``width`` continue in a table below.
    """
    # includes Rich's column spacing, which it takes unevenly; Rich would drop columns that do not fit
    fitting = max(1, (width - _NAME_WIDTH - 1) // (_PLACE_WIDTH + 3))
    tables = -(-len(study.columns) // fitting)
    size = -(-len(study.columns) // tables)
    starts = range(0, len(study.columns), size)
    return Group(*(_terminal_columns(study, lines, slice(at, at + size)) for at in starts))


def _terminal_columns(study: Study, lines: Sequence[Line], shown: slice) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", overflow="fold", min_width=_NAME_WIDTH)
    for column in study.columns[shown]:
        table.add_column(column, justify="right", overflow="fold", min_width=_PLACE_WIDTH)
    for line in lines:
        cells = [
            f"{_mean_alone(line.row, place)}\n{_beside(line.row, paper).strip()}".replace(" %", "%")
            for place, paper in zip(line.ours[shown], line.row.paper[shown], strict=True)
        ]
        table.add_row(*map(Text, [" ".join(line.row.name), *cells]))
    return table


def _mean_alone(row: TableRow, place: Place) -> str:
    return show_place(row, place.model_copy(update={"sd": None}))


def table_remarks(study: Study, lines: Sequence[Line]) -> list[str]:
    """Return remarks on the table: units, attackers, images that were not found, gaps."""
    filled = [
        (" ".join(line.row.name), column, place)
        for line in lines
        for column, place in zip(study.columns, line.ours, strict=True)
    ]
    measured = [entry for entry in filled if entry[2].missing is None]
    attacked = [entry for entry in measured if entry[2].form is not None]
    counts = _grouped(measured, lambda place: f"{place.n} {place.unit}{'' if place.n == 1 else 's'}")
    forms = _grouped(attacked, lambda place: place.form)
    lost = _grouped(
        [entry for entry in measured if entry[2].not_found],
        lambda place: f"{place.not_found} {place.unit}s not found by the attack",
    )
    gaps = _grouped([entry for entry in filled if entry[2].missing is not None], lambda place: place.missing)
    words = {
        "plain": "the plain attacker",
        "adaptive": "the adaptive attacker",
        "both": "both attackers alike",
    }
    remarks = [
        f"Mean ± standard deviation over {count}{_where(places, measured)}."
        for count, places in counts.items()
    ]
    remarks += [f"Of {words[form]}{_where(places, attacked)}." for form, places in forms.items()]
    marks: dict[str, list[str]] = {}
    for row in (line.row for line in lines):
        if row.mark is not None:
            bound = f"{row.mark.comparison.replace('_', ' ')} {row.mark.bound:g}"
            marks.setdefault(bound, []).append(" ".join(row.name))
    remarks += [f"✓: {bound}: {', '.join(names)}." for bound, names in marks.items()]
    missing = [*lost.items(), *gaps.items()]
    return remarks + [f"{_capital(reason)}{_where(places, filled)}." for reason, places in missing]


def study_table(study: Study, lines: Sequence[Line]) -> StudyTable:
    """Return the table in the form of study.json."""
    rows = [
        StudyLine(
            name=list(line.row.name),
            better=line.row.better,
            show=line.row.show,
            digits=line.row.digits,
            ours=list(line.ours),
            paper=list(line.row.paper),
            mark=None if line.row.mark is None else {line.row.mark.comparison: line.row.mark.bound},
        )
        for line in lines
    ]
    return StudyTable(columns=list(study.columns), rows=rows)


def _place(entry: Entry, cells: Sequence[Measured], show: str) -> Place:
    take, metric = entry.select.take, entry.select.metric
    if entry.without is not None:
        unit = "seed" if metric is None else metric.unit
        return Place(unit=unit, missing=entry.without, take=take)
    found = select(cells, entry.select)
    if found.missing is not None:
        return Place(unit=found.unit, missing=found.missing, take=take)
    units = list(found.by_unit().values())
    sd = statistics.stdev(units) if take == "mean" and len(units) > 1 else None
    sentences = show in SENTENCES
    words = sentence(cells, entry.select, original=show == "original") if sentences else None
    return Place(
        mean=taken(found, take),
        sd=sd,
        n=len(units),
        unit=found.unit,
        form=found.form,
        not_found=found.not_found,
        take=take,
        words=words,
    )


def _marked_place(row: TableRow, place: Place, cells: Sequence[Measured]) -> Place:
    """Mark whether a place meets the line's bound: its mean does, or the attack gave up."""
    if row.mark is None:
        return place
    if place.mean is None:
        gave_up = place.missing is not None and place.missing.startswith(GAVE_UP)
        return place.model_copy(update={"mark": True if gave_up else None})
    bound = row.mark.bound
    if row.mark.base is not None:
        base = select(cells, row.mark.base)
        if base.missing is not None:
            return place
        bound = taken(base, row.mark.base.take) - bound
    keeps = place.mean <= bound if row.mark.comparison == "at_most" else place.mean >= bound
    return place.model_copy(update={"mark": keeps})


def _decimals(value: float | None, digits: int, factor: float = 1) -> str:
    shown = None if value is None else value * factor
    if shown is not None and (0 < abs(shown) < 10**-digits or _LONG <= abs(shown) < math.inf):
        return f"{shown:.1e}"  # scientific notation for values that would round to 0 or have many digits
    return format_number(shown, digits)


def _bold(text: str, best: bool) -> str:
    return f"**{text}**" if best else text


def _beside(row: TableRow, paper: float | str | None) -> str:
    return "" if paper is None else f" ({show_value(row, paper)})"


def _name_columns(lines: Sequence[Line]) -> int:
    return max((len(line.row.name) for line in lines), default=1)


def _names(line: Line, columns: int) -> list[str]:
    return [*line.row.name, *[""] * (columns - len(line.row.name))]


def _grouped(entries: Sequence[_Filled], key: Callable[[Place], Any]) -> dict[str, list[_Filled]]:
    found: dict[str, list[_Filled]] = {}
    for entry in entries:
        found.setdefault(str(key(entry[2])), []).append(entry)
    return found


def _where(places: Sequence[_Filled], among: Sequence[_Filled]) -> str:
    """Name places, whole lines by the line's name; empty if they are all places."""
    if len(places) == len(among):
        return ""
    named = []
    for line in dict.fromkeys(name for name, _, _ in places):
        columns = [column for name, column, _ in places if name == line]
        whole = len(columns) == sum(name == line for name, _, _ in among)
        named.append(line if whole else f"{line} of {' and '.join(columns)}")
    shown = ", ".join(named[:_NAMED])
    return f": {shown} and {len(named) - _NAMED} more" if len(named) > _NAMED else f": {shown}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
