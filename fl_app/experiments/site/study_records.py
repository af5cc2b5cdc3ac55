"""Typed content of `study.json`; a missing or malformed value becomes None or empty."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fl_app.report.data.records import as_entries, as_mapping, as_number, as_text, as_texts, inside
from fl_app.report.data.runs import RESULT

STUDY = "study.json"
HOLDS, FAILS, OPEN, UNKNOWN = VERDICTS = ("holds", "does not hold", "not decided", "not measured")


@dataclass(frozen=True)
class CellRecord:
    """One run of an experiment."""

    folder: Path
    name: str
    part: str
    status: str
    reason: str


@dataclass(frozen=True)
class Measurement:
    """One place of the table."""

    mean: float | None
    sd: float | None
    n: int
    unit: str
    missing: str | None
    words: str | None = None
    """Of a line of sentences."""
    mark: bool | None = None
    """Of a line with marks: whether it is ✓."""


@dataclass(frozen=True)
class TableLine:
    """One line of the table: ours and the paper's, by column."""

    name: tuple[str, ...]
    better: str
    show: str
    """`number`, `percent`, `bytes`, `words` or `original`."""
    digits: int
    ours: tuple[Measurement, ...]
    paper: tuple[float | str | None, ...]


@dataclass(frozen=True)
class FigureRecord:
    """A figure's files."""

    title: str
    picture: Path | None
    svg: Path | None


@dataclass(frozen=True)
class ClaimRecord:
    """One claim of the paper with its verdict among the claims of its own experiment."""

    name: str
    text: str
    verdict: str
    words: str
    left: float | None
    right: float | None
    n: int
    unit: str
    p: float | None


@dataclass(frozen=True)
class StudyRecord:
    """One table or figure of a paper, as it was measured at one scale."""

    folder: Path
    name: str
    paper: str
    what: str
    title: str
    scale: str
    honest: str
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    command: str
    seeds: tuple[str, ...]
    cells: tuple[CellRecord, ...]
    columns: tuple[str, ...]
    lines: tuple[TableLine, ...]
    figures: tuple[FigureRecord, ...]
    claims: tuple[ClaimRecord, ...]
    versions: Mapping[str, str]
    finished: bool
    measured: str
    """The day on which the last of its runs was written."""

    @property
    def heading(self) -> str:
        """One-line title."""
        return f"{self.what}: {self.title}" if self.title else self.what


def find_studies(paths: Iterable[Path]) -> list[StudyRecord]:
    """Return the experiments in or below ``paths``, in the order of their folders, each once."""
    files = {file.resolve(): file for path in paths for file in sorted(path.rglob(STUDY))}
    return [read_study(file) for file in files.values()]


def read_study(file: Path) -> StudyRecord:
    """Read one `study.json`."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # bad JSON and bad UTF-8 alike
        raise ValueError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{file} must hold a JSON object, got {type(raw).__name__}")
    folder = file.parent
    table = as_mapping(raw.get("table"))
    columns = _words(table.get("columns"))
    cells = tuple(_cell(entry, folder) for entry in as_entries(raw.get("cells")))
    name = as_text(raw.get("name")) or folder.name
    return StudyRecord(
        folder=folder,
        name=name,
        paper=as_text(raw.get("paper")) or "other",
        what=as_text(raw.get("what")) or name,
        title=as_text(raw.get("title")) or "",
        scale=as_text(raw.get("scale")) or "",
        honest=as_text(raw.get("honest")) or "",
        missing=as_texts(raw.get("missing")),
        notes=as_texts(raw.get("notes")),
        command=as_text(raw.get("command")) or "",
        seeds=as_texts(raw.get("seeds")),
        cells=cells,
        columns=columns,
        lines=tuple(_line(entry, len(columns)) for entry in as_entries(table.get("rows"))),
        figures=tuple(_figure(entry, folder) for entry in as_entries(raw.get("figures"))),
        claims=tuple(_claim(entry) for entry in as_entries(raw.get("claims"))),
        versions={k: text for k, v in as_mapping(raw.get("versions")).items() if (text := as_text(v))},
        finished=raw.get("finished") is True,
        measured=_measured(file, cells),
    )


def _cell(raw: Mapping[str, object], folder: Path) -> CellRecord:
    place = as_text(raw.get("folder")) or ""
    return CellRecord(
        folder=(folder / place).resolve(),
        name=as_text(raw.get("name")) or Path(place).name,
        part=as_text(raw.get("part")) or "",
        status=as_text(raw.get("status")) or "",
        reason=as_text(raw.get("reason")) or "",
    )


def _line(raw: Mapping[str, object], columns: int) -> TableLine:
    ours = [_measurement(entry) for entry in as_entries(raw.get("ours"))]
    paper = [value if isinstance(value, str) else as_number(value) for value in _listed(raw.get("paper"))]
    digits = as_number(raw.get("digits"))
    absent = Measurement(None, None, 0, "", "not in the file")
    return TableLine(
        name=_words(raw.get("name")),
        better=as_text(raw.get("better")) or "none",
        show=as_text(raw.get("show")) or "number",
        digits=3 if digits is None else int(digits),
        ours=tuple((ours + [absent] * columns)[:columns]),
        paper=tuple((paper + [None] * columns)[:columns]),
    )


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _words(value: object) -> tuple[str, ...]:
    # an empty one keeps its place
    return tuple(as_text(item) or "" for item in _listed(value))


def _measurement(raw: Mapping[str, object]) -> Measurement:
    return Measurement(
        mean=as_number(raw.get("mean")),
        sd=as_number(raw.get("sd")),
        n=int(as_number(raw.get("n")) or 0),
        unit=as_text(raw.get("unit")) or "",
        words=as_text(raw.get("words")),
        missing=as_text(raw.get("missing")),
        mark=mark if isinstance(mark := raw.get("mark"), bool) else None,
    )


def _figure(raw: Mapping[str, object], folder: Path) -> FigureRecord:
    return FigureRecord(
        title=as_text(raw.get("title")) or as_text(raw.get("kind")) or "figure",
        picture=_file(folder, raw.get("file")),
        svg=_file(folder, raw.get("svg")),
    )


def _file(folder: Path, name: object) -> Path | None:
    path = inside(folder, name)
    return path if path is not None and path.is_file() else None


def _claim(raw: Mapping[str, object]) -> ClaimRecord:
    verdict = as_text(raw.get("verdict")) or UNKNOWN
    return ClaimRecord(
        name=as_text(raw.get("name")) or "",
        text=as_text(raw.get("text")) or as_text(raw.get("name")) or "",
        verdict=verdict if verdict in VERDICTS else UNKNOWN,
        words=as_text(raw.get("words")) or "",
        left=as_number(raw.get("left")),
        right=as_number(raw.get("right")),
        n=int(as_number(raw.get("n")) or 0),
        unit=as_text(raw.get("unit")) or "",
        p=as_number(raw.get("p")),
    )


def _measured(file: Path, cells: tuple[CellRecord, ...]) -> str:
    # of the results, not of study.json: the same command writes that one anew without measuring anything
    results = [result for cell in cells if (result := cell.folder / RESULT).is_file()]
    latest = max(path.stat().st_mtime for path in results or [file])
    return datetime.fromtimestamp(latest, UTC).date().isoformat()
