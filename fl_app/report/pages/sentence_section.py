"""Report section on sentences: the tokens read, by iteration of the search."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from fl_app.report.data.formats import DASH, format_percent
from fl_app.report.data.update_kinds import update_words
from fl_app.report.markup import Child, element, table
from fl_app.results import Attack, Read, Run, Sentence

WRONG = "✗"
"""Mark before a wrong token, for readers who do not see colours."""


def sentence_section(run: Run) -> list[Child]:
    """Return a table for each attacked sentence: the original, and the tokens read after some iterations."""
    attacks = [(attack, attack.sentence) for attack in run.comparisons if attack.sentence is not None]
    if not attacks:
        return []
    return [
        element("h2", "What was written, and what was read"),
        element(
            "p",
            f"Tokens that differ from the original are marked, with {WRONG} before them. Underlined tokens "
            "of the original were masked: the model was asked for them. Where the attacker was granted "
            "those, the share of tokens that are right is that of the others.",
        ),
        *([element("h3", _title(run, attack)), _table(sentence)] for attack, sentence in attacks),
    ]


def _title(run: Run, attack: Attack) -> str:
    facts = [
        f"{attack.name} (adaptive)" if attack.adaptive else attack.name,
        update_words(run, attack),
        None if attack.round is None else f"round {attack.round}",
        None if attack.sender is None else f"client {attack.sender}",
        "masked places and targets granted" if attack.labels_from == "granted" else "nothing granted",
    ]
    return ", ".join(fact for fact in facts if fact)


def _table(sentence: Sentence) -> Child:
    true, masked = sentence.true, sentence.masked or []
    original = [] if true is None else [["original", _original(true, masked), ""]]
    rows = [
        [_when(read), _tokens(_marked(read.tokens, true)), format_percent(read.accuracy)]
        for read in sentence.reads
    ]
    return table(["iterations", "tokens", "right"], [*original, *rows], words=2)


def _when(read: Read) -> str:
    return "end" if read.iteration is None else str(read.iteration)


def _original(true: Sequence[str], masked: Sequence[bool]) -> Child:
    return _tokens(
        [
            element("u", token) if hidden else token
            for token, hidden in zip_longest(true, masked[: len(true)], fillvalue=False)
            if isinstance(token, str)
        ]
    )


def _marked(tokens: Sequence[str], true: Sequence[str] | None) -> list[Child]:
    """Return the tokens, those marked that are not the original's; a dash where one is missing."""
    if true is None:
        return list(tokens)
    return [
        found if found == right else element("mark", f"{WRONG}{DASH if found is None else found}")
        for found, right in zip_longest(tokens, true)
    ]


def _tokens(tokens: list[Child]) -> Child:
    return element("div", [[token, " "] for token in tokens], class_="tokens")
