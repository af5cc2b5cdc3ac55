"""Bundled English vocabulary: small, and learnt from books in the public domain."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from fl_app.text.tokenizer import WordPiece


@cache
def english() -> WordPiece:
    """Return the pieces of ``english.json``, which `fl_app.text.learn` wrote."""
    # JSON: of text files, Flower's app bundles take only a few kinds
    return WordPiece(tuple(json.loads(Path(__file__).with_name("english.json").read_text(encoding="ascii"))))
