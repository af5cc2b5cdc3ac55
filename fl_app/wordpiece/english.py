"""The vocabulary that comes with the project: small, and learnt from books in the public domain."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fl_app.wordpiece.tokenizer import WordPiece


@cache
def english() -> WordPiece:
    """Return the pieces of ``english.txt``, which `fl_app.wordpiece.learn` wrote."""
    return WordPiece(
        tuple(Path(__file__).with_name("english.txt").read_text(encoding="ascii").split("\n")[:-1])
    )
