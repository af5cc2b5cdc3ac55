"""Word error rate of a transcript: edits of words against the reference."""

from __future__ import annotations

from collections.abc import Sequence


def count_edits(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Return the fewest words to insert, delete or replace that turn one sequence into the other.

    This is Levenshtein's distance, by rows of its table.
    """
    above = list(range(len(heard) + 1))
    for row, word in enumerate(reference, 1):
        current = [row]
        for column, other in enumerate(heard, 1):
            replaced = above[column - 1] + (word != other)
            current.append(min(replaced, above[column] + 1, current[-1] + 1))
        above = current
    return above[-1]


def word_error_rate(references: Sequence[str], heard: Sequence[str]) -> float:
    """Return the edits of all texts together over the words that were said; it may exceed 1."""
    if len(references) != len(heard):
        raise ValueError(f"word_error_rate: {len(references)} references, but {len(heard)} transcripts")
    words = sum(len(text.split()) for text in references)
    if words == 0:
        raise ValueError("word_error_rate: the references must hold at least one word, got none")
    pairs = zip(references, heard, strict=True)
    return sum(count_edits(said.split(), text.split()) for said, text in pairs) / words
