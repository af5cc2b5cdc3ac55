"""Text as numbers: words cut into pieces of a limited vocabulary.

A piece that begins a word begins with ``▁``. The pieces of a vocabulary are in the order in which they
were learnt, each one by joining two earlier ones: a word is cut by joining its letters in that order.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

BEGINS = "▁"
UNKNOWN, START, END = "<unk>", "<s>", "</s>"
_SIGN = re.compile(r"</?[a-z]+>")
"""A piece without text."""


@dataclass(frozen=True)
class Vocabulary:
    """Pieces of words; a token is a piece's place among them."""

    pieces: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.pieces)) != len(self.pieces):
            raise ValueError("Vocabulary: no piece may occur twice")
        missing = [piece for piece in (UNKNOWN, START, END, BEGINS) if piece not in self.pieces]
        if missing:
            raise ValueError(
                f"Vocabulary: must have the pieces {UNKNOWN} {START} {END} {BEGINS}, lacks {missing}"
            )
        if "" in self.pieces:
            raise ValueError("Vocabulary: no piece may be empty")

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def _rank(self) -> dict[str, int]:
        return {piece: i for i, piece in enumerate(self.pieces) if not _SIGN.fullmatch(piece)}

    @cached_property
    def unknown(self) -> int:
        """The token of a letter that no piece has."""
        return self.pieces.index(UNKNOWN)

    @cached_property
    def start(self) -> int:
        """The token before the first one."""
        return self.pieces.index(START)

    @cached_property
    def end(self) -> int:
        """The token after the last one."""
        return self.pieces.index(END)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text`` in small letters, without an end."""
        return [
            self._rank.get(piece, self.unknown) for word in normal(text).split() for piece in self._cut(word)
        ]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text up to its end; of the signs only the unknown one is shown."""
        shown = []
        for token in tokens:
            piece = self.pieces[token]
            if piece == END:
                break
            if piece == UNKNOWN or not _SIGN.fullmatch(piece):
                shown.append(piece)
        return normal("".join(shown))

    def _cut(self, word: str) -> list[str]:
        """Join neighbours, those first whose union comes first in the vocabulary, the left ones of equals."""
        pieces = [BEGINS, *word]
        while True:
            joined = [(self._rank.get(a + b), i) for i, (a, b) in enumerate(pairwise(pieces))]
            known = [(rank, i) for rank, i in joined if rank is not None]
            if not known:
                return pieces
            _, i = min(known)
            pieces[i : i + 2] = [pieces[i] + pieces[i + 1]]


def normal(text: str) -> str:
    """Return ``text`` in small letters with one space between words."""
    return " ".join(text.lower().replace(BEGINS, " ").split())


def letters() -> Vocabulary:
    """Return the vocabulary of single letters and the apostrophe."""
    return Vocabulary((UNKNOWN, START, END, BEGINS, *string.ascii_lowercase, "'"))


def read_pieces(path: str | Path, first: int | None = None) -> Vocabulary:
    """Return the vocabulary in a file with one piece a line, or its ``first`` pieces alone.

    Pieces are listed in the order in which they were learnt, so the first ones are a vocabulary, too.
    """
    if first is not None and first < 1:
        raise ValueError(f"read_pieces: first must be at least 1, got {first}")
    try:
        lines: Sequence[str] = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"read_pieces: cannot read {path}: {error}") from error
    try:
        return Vocabulary(tuple(lines[:first]))
    except ValueError as error:
        raise ValueError(f"read_pieces: {path}: {error}") from error
