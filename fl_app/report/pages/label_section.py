"""Report section on label attacks: labels found, class by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fl_app.report.data.formats import DASH, format_number
from fl_app.report.data.scores import mean_of
from fl_app.report.data.update_kinds import update_words
from fl_app.report.markup import Child, element, table
from fl_app.results import Attack, Run

NAMES = ("precision", "recall", "f1", "exact")
_TITLES = ("precision", "recall", "F1", "exact")
MOST_ROWS = 60
"""Classes in a table: those that were missed or wrongly named come first."""


def label_means(attacks: Iterable[Attack]) -> dict[str, float | None]:
    """Return the mean scores over several updates."""
    scored = [attack.label_scores for attack in attacks if attack.label_scores]
    return {name: mean_of([one[name] for one in scored if name in one]) for name in NAMES}


def label_section(run: Run) -> list[Child]:
    """Return what attacks on labels found, for each kind of update and form of attack."""
    groups: dict[tuple[str, str, bool], list[Attack]] = {}
    for attack in run.comparisons:
        if attack.found_labels or attack.true_labels:
            groups.setdefault((attack.name, update_words(run, attack), attack.adaptive), []).append(attack)
    if not groups:
        return []
    rows = [
        [name, update, _rules(own), str(len(own)), *_means(own)] for (name, update, _), own in groups.items()
    ]
    return [
        element("h2", "Which labels the updates gave away"),
        table(["attack", "update", "answered by", "updates", *_TITLES], rows, words=3),
        *(_classes(f"{name}, {update}", own) for (name, update, _), own in groups.items()),
    ]


def _means(attacks: list[Attack]) -> list[str]:
    return [format_number(value, 3) for value in label_means(attacks).values()]


def _rules(attacks: list[Attack]) -> str:
    """Say for how many updates each rule answered, the most frequent first."""
    rules = Counter(attack.rule for attack in attacks if attack.rule is not None)
    return ", ".join(f"{rule} ({number})" for rule, number in rules.most_common()) or DASH


def _classes(title: str, attacks: list[Attack]) -> Child:
    present, found, right = Counter[int](), Counter[int](), Counter[int]()
    for attack in attacks:
        true, named = attack.true_labels or [], attack.found_labels or []
        present.update(set(true))
        found.update(named)
        right.update(set(true) & set(named))
    classes = sorted(present | found, key=lambda c: (right[c] == present[c] == found[c], c))
    rows = [
        [
            str(c),
            str(present[c]),
            str(found[c]),
            _share(right[c], found[c]),
            _share(right[c], present[c]),
        ]
        for c in classes[:MOST_ROWS]
    ]
    left = len(classes) - len(rows)
    return [
        element("h3", title),
        table(["class", "updates with it", "updates in which it was named", "precision", "recall"], rows),
        element("p", f"{left} more classes, all of them right or further down.") if left else None,
    ]


def _share(part: int, whole: int) -> str:
    return format_number(part / whole, 2) if whole else DASH
