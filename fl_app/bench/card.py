"""Card of a defense: what was tried, what came of it, and everything that it takes to try again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from fl_app.results.rows import Row, Whole
from fl_app.results.writing import json_text, write_json, write_text

SCHEMA = 1
"""Version of the format; a reader refuses a later one."""
CARD = "card.json"
Verdict = Literal["holds", "falls", "not decided", "not refuted", "not measured"]


class Attacked(Row):
    """Scores of one attacker on the images of one condition."""

    attacker: str
    knows: str
    ssim: list[float]
    psnr: list[float]
    mean: float
    low: float
    high: float
    """The interval of the mean, at the criterion's confidence."""
    best: float
    notes: list[str] = Field(default_factory=list)


class Condition(Row):
    """One model, set of images and view."""

    model: str
    images_of: str
    view: str
    images: Whole = 0
    steps: Whole = 0
    restarts: Whole = 0
    grey: float | None = None
    """Mean SSIM of a mid-grey image."""
    limit: float | None = None
    """Largest mean SSIM at which the defense holds."""
    first_round: Whole | None = None
    """The first round in which clients sent anything but zeros."""
    attacks: list[Attacked] = Field(default_factory=list)
    worst: str | None = None
    """The attacker with the highest mean."""
    labels: float | None = None
    """Share of the labels that the signs of the output bias tell, in the first such update."""
    images_hash: str | None = None
    verdict: Verdict = "not measured"
    why: str = ""


class Accuracy(Row):
    """Accuracy against no defense, paired by seed."""

    rounds: Whole = 0
    seeds: list[Whole] = Field(default_factory=list)
    accuracy: list[float] = Field(default_factory=list)
    without: list[float] = Field(default_factory=list)
    points: float | None = None
    """Mean difference in points; negative: the defense costs accuracy."""
    low: float | None = None
    high: float | None = None
    """One-sided bounds."""
    verdict: Verdict = "not measured"
    why: str = ""


class Bytes(Row):
    """Bytes of a round of all clients, as serialised."""

    uplink: float | None = None
    downlink: float | None = None
    uplink_limit: float | None = None
    dense: float | None = None
    """Raw float32, one way."""
    verdict: Verdict = "not measured"
    why: str = ""


class Card(Row):
    """Result of a bench."""

    schema_version: Whole = SCHEMA
    defense: str
    source: str
    overrides: list[str]
    criterion_version: Whole
    criterion_hash: str
    size: str
    seed: Whole
    tuning: bool = False
    """Measured with the seed on which defenses are tuned: no result."""
    verdict: Verdict
    why: str
    conditions: list[Condition]
    accuracy: Accuracy
    bytes: Bytes
    not_measured: list[str] = Field(default_factory=list)
    """Parts of the criterion that this card says nothing on, or only in a smaller size."""
    versions: dict[str, str] = Field(default_factory=dict)
    minutes: float = 0.0
    """Time over all calls."""
    command: str = ""


def card_schema() -> dict[str, Any]:
    """Return the JSON schema of a card."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Card.model_json_schema()


def write_card(folder: Path, card: Card) -> Path:
    """Write a card and return its path."""
    path = folder / CARD
    write_json(path, card.as_json(), ascii_only=False)
    return path


def read_card(path: Path) -> Card:
    """Read a card, which may be a stranger's; raise a ValueError that says what is wrong with it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content.get("schema_version") if isinstance(content, dict) else None
        if version != SCHEMA:
            raise ValueError(f"expected schema_version {SCHEMA}, got {version!r}")
        return Card.model_validate(content)
    except (OSError, ValueError, ValidationError, RecursionError) as error:
        raise ValueError(f"{path}: is no card: {str(error).splitlines()[0]}") from error


def write_schema(folder: Path) -> None:
    """Write the schema into the documentation: ``python -m fl_app.bench.card docs``."""
    write_text(folder / "card.schema.json", json_text(card_schema()))


if __name__ == "__main__":
    import sys

    write_schema(Path(sys.argv[1]))
