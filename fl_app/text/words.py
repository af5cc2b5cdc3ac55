"""Word splitting as in BERT: punctuation and Chinese characters are words of their own."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

_SYMBOLS = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def split_words(text: str, *, lower: bool = True, accents: bool = False) -> list[str]:
    """Return the words of a text, ``lower`` in small letters, and without ``accents`` unless they stay."""
    kept = "".join(_cleaned(text))
    if not accents:
        kept = "".join(c for c in unicodedata.normalize("NFD", kept) if unicodedata.category(c) != "Mn")
    if lower:
        kept = kept.lower()
    return "".join(f" {c} " if _is_punctuation(c) else c for c in kept).split()


def _cleaned(text: str) -> Iterator[str]:
    for character in text:
        if character in "\t\n\r":
            yield " "
        elif character == "\ufffd" or unicodedata.category(character).startswith("C"):
            continue
        elif character.isspace():
            yield " "
        elif any(low <= ord(character) <= high for low, high in _CHINESE):
            yield f" {character} "
        else:
            yield character


def _is_punctuation(character: str) -> bool:
    return character in _SYMBOLS or unicodedata.category(character).startswith("P")
