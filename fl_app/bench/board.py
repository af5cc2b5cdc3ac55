"""Leaderboard made from cards: worst cases side by side, and corrected tests against one of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fl_app.bench.card import CARD, Card, Condition, read_card
from fl_app.bench.criterion import criterion, criterion_hash
from fl_app.experiments.studies.significance import sign_flip_p
from fl_app.report.data.formats import DASH, format_bytes
from fl_app.report.markdown import markdown_rows
from fl_app.report.markup import Child, Html, element, page, table
from fl_app.results import write_json
from fl_app.results.writing import write_text

REFERENCE = "dgp"
_ORDER = ("holds", "not refuted", "not decided", "falls", "not measured")


class Compared(NamedTuple):
    """A paired test: does the worst attacker recover less under a defense than under the reference?"""

    defense: str
    condition: str
    images: int
    difference: float
    """Mean SSIM under the reference minus that under the defense."""
    p: float
    corrected: float
    """Holm's adjusted p-value over all comparisons of the board."""


def find_cards(places: Iterable[Path]) -> tuple[list[Card], list[str]]:
    """Return the cards in files and below folders, and the reasons why others were left out.

    Of several cards of one defense in one size the last one read counts.
    """
    found: dict[tuple[str, str], Card] = {}
    refused: list[str] = []
    for place in places:
        paths = sorted([*place.rglob(CARD), *place.rglob("*.card.json")]) if place.is_dir() else [place]
        for path in paths:
            try:
                card = read_card(path)
            except ValueError as error:
                refused.append(str(error))
                continue
            if card.criterion_hash != criterion_hash():
                refused.append(f"{path}: measured by another criterion ({card.criterion_hash[:12]})")
            elif card.tuning:
                refused.append(f"{path}: measured with the seed for tuning")
            else:
                found[card.defense, card.size] = card
    return sorted(found.values(), key=_rank), refused


def holm(ps: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p-values."""
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    adjusted, highest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = highest
    return adjusted


def compare(cards: Sequence[Card]) -> list[Compared]:
    """Test every card against the reference of its size, on the same images, one test a condition."""
    rows: list[tuple[str, str, list[float]]] = []
    for card in cards:
        reference = next((c for c in cards if c.defense == REFERENCE and c.size == card.size), None)
        if reference is None or card.defense == REFERENCE:
            continue
        theirs = {_name(c): c for c in reference.conditions}
        for condition in card.conditions:
            other = theirs.get(_name(condition))
            mine, beside = _worst(condition), None if other is None else _worst(other)
            if mine and beside and other is not None and condition.images_hash == other.images_hash:
                pairs = zip(beside, mine, strict=True)
                rows.append((card.defense, _name(condition), [b - a for b, a in pairs]))
    ps = [sign_flip_p(differences) for _, _, differences in rows]
    return [
        Compared(defense, where, len(values), sum(values) / len(values), p, corrected)
        for (defense, where, values), p, corrected in zip(rows, ps, holm(ps), strict=True)
    ]


def write_board(folder: Path, places: Sequence[Path]) -> Path:
    """Write ``leaderboard.html``, its numbers as JSON, and return the page."""
    cards, refused = find_cards(places)
    rows = compare(cards)
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "criterion": criterion_hash(),
        "cards": [card.as_json() for card in cards],
        "comparisons": [row._asdict() for row in rows],
        "refused": refused,
    }
    write_json(folder / "leaderboard.json", content, ascii_only=False)
    path = folder / "leaderboard.html"
    write_text(path, page("Defenses under the worst attacker", _body(cards, rows, refused), wide=True))
    return path


def markdown_board(cards: Sequence[Card]) -> str:
    """Return the leaderboard as a Markdown table."""
    return markdown_rows([_HEADER, ["---"] * len(_HEADER), *_rows(cards)])


_HEADER = (
    *("defense", "size", "verdict", "worst, one round", "worst, ten rounds", "worst, ten images"),
    *("best image", "grey", "accuracy, points", "kB up", "kB down"),
)


def _rows(cards: Sequence[Card]) -> list[list[str]]:
    return [
        [
            card.defense,
            card.size,
            card.verdict,
            *(_shown(_of_view(card, view.name)) for view in criterion().leak.views),
            _number(max((a.best for c in card.conditions for a in c.attacks), default=None), 2),
            _number(min((c.grey for c in card.conditions if c.grey is not None), default=None), 2),
            _points(card),
            DASH if card.bytes.uplink is None else format_bytes(card.bytes.uplink),
            DASH if card.bytes.downlink is None else format_bytes(card.bytes.downlink),
        ]
        for card in cards
    ]


def _body(cards: Sequence[Card], rows: Sequence[Compared], refused: Sequence[str]) -> list[Child]:
    compared = [
        [r.defense, r.condition, str(r.images), f"{r.difference:+.3f}", f"{r.p:.4f}", f"{r.corrected:.4f}"]
        for r in rows
    ]
    return [
        element("h1", "Defenses under the worst attacker"),
        element(
            "p",
            "Mean SSIM that the worst attacker reaches, with its 95 % interval, in the worst condition "
            "that was measured; grey: the SSIM of a mid-grey image. A defense holds only if every condition "
            "of the criterion does, in full size.",
        ),
        element("div", table(_HEADER, _rows(cards), words=3), data_cards=str(len(cards))),
        element("h2", f"Against {REFERENCE}"),
        element(
            "p",
            "Exact paired tests by image of the worst attackers, one-sided: less is recovered than under "
            f"{REFERENCE}. The last column is corrected over all rows (Holm).",
        ),
        table(("defense", "condition", "images", "less by", "p", "corrected"), compared, words=2),
        *(element("p", f"left out: {reason}", class_="note") for reason in refused),
    ]


def _rank(card: Card) -> tuple[int, float, str]:
    worst = [_mean(c) for c in card.conditions if c.attacks]
    return _ORDER.index(card.verdict), max(worst, default=1.0), card.defense


def _of_view(card: Card, view: str) -> Condition | None:
    """Return the condition of a view in which most was recovered."""
    found = [c for c in card.conditions if c.view == view and c.attacks]
    return max(found, key=_mean, default=None)


def _mean(condition: Condition) -> float:
    return max((one.mean for one in condition.attacks), default=-1.0)


def _worst(condition: Condition) -> list[float]:
    found = max(condition.attacks, key=lambda one: one.mean, default=None)
    return [] if found is None else found.ssim


def _name(condition: Condition) -> str:
    return f"{condition.model}, {condition.images_of}, {condition.view}"


def _shown(condition: Condition | None) -> str:
    if condition is None:
        return DASH
    worst = max(condition.attacks, key=lambda one: one.mean)
    return f"{worst.mean:.2f} [{worst.low:.2f}, {worst.high:.2f}]"


def _number(value: float | None, digits: int) -> str:
    return DASH if value is None else f"{value:.{digits}f}"


def _points(card: Card) -> str:
    found = card.accuracy
    if found.points is None:
        return DASH
    low = "" if found.low is None else f" (at least {found.low:+.1f})"
    return f"{found.points:+.1f}{low}"


def card_page(card: Card) -> Html:
    """Return the page of one card."""
    facts: Mapping[str, str] = {
        "criterion": f"version {card.criterion_version}, {card.criterion_hash}",
        "size": card.size,
        "seed": str(card.seed),
        "settings": " ".join(card.overrides),
        "versions": ", ".join(f"{name} {value}" for name, value in card.versions.items()),
        "minutes": f"{card.minutes:g}",
        "again": card.command,
    }
    attacks = [
        [
            _name(condition),
            one.attacker,
            str(len(one.ssim)),
            f"{one.mean:.3f} [{one.low:.3f}, {one.high:.3f}]",
            f"{one.best:.2f}",
            _number(condition.grey, 3),
            _number(condition.limit, 3),
            _number(condition.labels, 2),
        ]
        for condition in card.conditions
        for one in condition.attacks
    ]
    verdicts = [[_name(c), c.verdict, c.why] for c in card.conditions]
    verdicts += [["accuracy", card.accuracy.verdict, card.accuracy.why]]
    verdicts += [["bytes", card.bytes.verdict, card.bytes.why]]
    header = ("condition", "attacker", "images", "mean SSIM", "best", "grey", "limit", "labels told")
    return page(
        f"{card.defense}: {card.verdict}",
        [
            element("h1", f"{card.defense}: {card.verdict}", data_verdict=card.verdict),
            element("p", card.why),
            table(("part", "verdict", "why"), verdicts, words=3),
            element("h2", "Attacks"),
            table(header, attacks, words=2),
            element("h2", "Not measured, or in a smaller size"),
            element("ul", [element("li", line) for line in card.not_measured]),
            element("h2", "What it takes to try again"),
            table(("what", "value"), [[key, value] for key, value in facts.items()], words=2),
        ],
        wide=True,
    )
