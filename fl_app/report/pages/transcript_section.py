"""Report section on transcripts: spoken and recovered words, with the differences marked."""

from __future__ import annotations

from difflib import SequenceMatcher

from fl_app.report.data.formats import DASH, format_percent
from fl_app.report.data.update_kinds import update_words
from fl_app.report.markup import Child, element, table
from fl_app.results import Attack, Run


def transcript_section(run: Run) -> list[Child]:
    """Return one row for each attacked utterance; words that differ are marked."""
    attacks = [a for a in run.comparisons if a.texts is not None and a.sentence is None]
    if not attacks:
        return []
    return [
        element("h2", "What was said, and what was read"),
        element("p", "Words that were not said, or not found, are marked."),
        table(["update", "client", "said", "read", "word errors"], [_row(run, a) for a in attacks], words=4),
    ]


def _row(run: Run, attack: Attack) -> list[Child]:
    found, true = attack.texts or ("", None)
    said, read = (true or DASH, found) if true is None else _marked(true.split(), found.split())
    who = DASH if attack.sender is None else str(attack.sender)
    return [update_words(run, attack), who, said, read, format_percent(attack.others.get("token_wer"))]


def _marked(said: list[str], read: list[str]) -> tuple[Child, Child]:
    """Return both texts with their differences marked."""
    left: list[Child] = []
    right: list[Child] = []
    for kind, a, b, c, d in SequenceMatcher(a=said, b=read, autojunk=False).get_opcodes():
        for parts, words in ((left, said[a:b]), (right, read[c:d])):
            if words:
                text = " ".join(words)
                parts += [" " if parts else "", text if kind == "equal" else element("mark", text)]
    return left, right
