"""Conversion of vocabularies of any kind to plain values and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fl_app.data.word_pieces import Vocabulary
from fl_app.text import WordPiece


def plain_vocabulary(vocabulary: Vocabulary | WordPiece | None) -> dict[str, Any] | None:
    """Return what `read_vocabulary` makes the same vocabulary of."""
    return None if vocabulary is None else asdict(vocabulary)


def read_vocabulary(content: Mapping[str, Any] | None) -> Vocabulary | WordPiece | None:
    """Return the vocabulary of spoken pieces, or of written ones, that ``content`` describes."""
    if content is None:
        return None
    settings = {**content, "pieces": tuple(map(str, content["pieces"]))}
    return WordPiece(**settings) if "lower" in settings else Vocabulary(**settings)
