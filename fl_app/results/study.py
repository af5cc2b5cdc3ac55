"""The result of a study: everything that its study.json says, and claims.json in part."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from fl_app.results.paths import inside
from fl_app.results.reading import RESULT, forgive, read_object, spelled
from fl_app.results.rows import Row, Whole
from fl_app.results.run import Origin

STUDY = "study.json"
VARIANT = "variant-"
"""Prefix of the folders that hold the table of a command with parts or overrides."""
Verdict = Literal["holds", "refuted", "equivalent", "not decided", "not measured"]
HOLDS: Verdict = "holds"
REFUTED: Verdict = "refuted"
EQUIVALENT: Verdict = "equivalent"
OPEN: Verdict = "not decided"
UNKNOWN: Verdict = "not measured"
VERDICTS: tuple[Verdict, ...] = (HOLDS, REFUTED, EQUIVALENT, OPEN, UNKNOWN)
Role = Literal["primary", "secondary", "check", "exploratory", "repeats another"]
ROLES: tuple[Role, ...] = ("primary", "secondary", "check", "exploratory", "repeats another")


class StudyCell(Row):
    """One run of the study."""

    folder: str = ""
    """Relative to the study's own."""
    part: str = ""
    name: str = ""
    status: str = ""
    """`finished` or `missing`."""
    reason: str | None = None
    """The reason why it is not finished."""
    overrides: list[str] = Field(default_factory=list)
    config: str | None = None
    """Hash of the run's config."""
    origin: Origin | None = None
    """The code, machine and data that its numbers come from."""
    versions: dict[str, str] = Field(default_factory=dict)


class Place(Row):
    """One place of the table."""

    mean: float | None = None
    sd: float | None = None
    n: Whole = 0
    unit: str = ""
    form: str | None = None
    """The attacker, where there are two: `plain`, `adaptive` or `both`."""
    not_found: Whole = 0
    """The number of images without a value, because the attack did not find them."""
    missing: str | None = None
    """The reason why there is no value."""
    take: str = "mean"
    words: str | None = None
    """Sentence of a line of text."""
    mark: bool | None = None
    """Whether it keeps to the line's bound, as an attack that gave up does; None: there is none."""


class StudyLine(Row):
    """One line of the table: ours and the paper's, by column."""

    name: list[str] = Field(default_factory=list)
    better: str = "none"
    """`lower`, `higher` or `none`."""
    show: str = "number"
    """`number`, `percent`, `bytes`, `words` or `original`."""
    digits: Annotated[int, Field(ge=0, le=30)] = 3
    ours: list[Place] = Field(default_factory=list)
    paper: list[Whole | float | str | None] = Field(default_factory=list)
    mark: dict[str, float] | None = None
    """The line's bound, by its comparison."""


class StudyTable(Row):
    """The table in the paper's layout."""

    columns: list[str] = Field(default_factory=list)
    rows: list[StudyLine] = Field(default_factory=list)


class StudyFigure(Row):
    """The files of a figure, in the study's folder."""

    file: str | None = None
    svg: str | None = None
    title: str = ""
    kind: str = "figure"


class StudyClaim(Row):
    """One sentence of the paper and what was found, judged in the family that its paper's protocol names."""

    name: str = ""
    text: str = ""
    verdict: Verdict = UNKNOWN
    words: str = ""
    left: float | None = None
    right: float | None = None
    low: float | None = None
    """The 95 % interval of the difference of both sides, or of the left one, by the same test."""
    high: float | None = None
    n: Whole = 0
    unit: str = ""
    test: str | None = None
    """The test; None: the numbers are compared as they are, or there are too few."""
    p: float | None = None
    """Two-sided: twice the smallest probability of the data under the opposite of a verdict."""
    p_family: float | None = None
    """``p`` times the number of tests in the claim's family."""
    role: Role = "exploratory"
    repeats: str | None = None
    """The claim of another study that is the same test on the same cells."""


class StudyResult(Row):
    """One table or figure of a paper, as it was measured at one scale."""

    name: str = ""
    paper: str = "other"
    what: str = ""
    title: str = ""
    scale: str = ""
    honest: str = ""
    """The differences from the paper's own setting."""
    missing: list[str] = Field(default_factory=list)
    """The parts of the table or figure that are not reproduced."""
    notes: list[str] = Field(default_factory=list)
    command: str = ""
    seeds: list[Whole] = Field(default_factory=list)
    cells: list[StudyCell] = Field(default_factory=list)
    table: StudyTable = Field(default_factory=StudyTable)
    figures: list[StudyFigure] = Field(default_factory=list)
    claims: list[StudyClaim] = Field(default_factory=list)
    protocol: str | None = None
    """The hash of the paper's protocol by which the claims were judged."""
    versions: dict[str, str] = Field(default_factory=dict)
    finished: bool = False
    measured_on: str | None = None
    """The day on which the last of its runs was written."""
    asked: list[str] = Field(default_factory=list)
    """The parts and overrides that a command asked for instead of the whole study; empty: the whole."""

    _folder: Path = PrivateAttr(default=Path())

    @property
    def folder(self) -> Path:
        """The folder that the study lies in."""
        return self._folder

    def lies_in(self, folder: Path) -> StudyResult:
        """Take ``folder`` for that of the study, and return the study."""
        self._folder = folder
        return self

    @property
    def is_variant(self) -> bool:
        """Whether other settings than the study's own were run: its verdicts are not those of the study."""
        return bool(self.asked) or self.folder.name.startswith(VARIANT)

    @property
    def heading(self) -> str:
        """The name of the table or figure and its title, in a line."""
        return f"{self.what}: {self.title}" if self.title else self.what

    @property
    def measured(self) -> str:
        """The day on which the last of its runs was written."""
        # of the results, not of study.json: the same command writes that one anew without measuring anything
        found = self.day_of_runs() or self.measured_on  # it may have been published without its runs
        return found or _day(self.folder / STUDY)

    def day_of_runs(self) -> str | None:
        """Return the day of the last of its results; None if none is there."""
        results = [result for cell in self.cells if (result := self.folder_of(cell) / RESULT).is_file()]
        return max(map(_day, results), default=None)

    def folder_of(self, cell: StudyCell) -> Path:
        """Return the folder of one of its runs."""
        return (self.folder / cell.folder).resolve()

    def file(self, name: str | None) -> Path | None:
        """Return the path of a file that a figure names; None if it is not there or outside the folder."""
        path = inside(self.folder, name)
        return path if path is not None and path.is_file() else None


def _day(file: Path) -> str:
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).date().isoformat()


def load_study(file: Path) -> StudyResult:
    """Read a study.json; values that do not fit are left out, and every failure is a `ResultError`."""
    study = forgive(StudyResult, spelled(read_object(file))).lies_in(file.parent)
    study.name = study.name or file.parent.name
    study.what = study.what or study.name
    columns = len(study.table.columns)
    absent = Place(missing="not in the file")
    for line in study.table.rows:
        line.ours = [*line.ours, *[absent] * columns][:columns]
        line.paper = [*line.paper, *[None] * columns][:columns]
    return study
