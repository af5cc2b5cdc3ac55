"""WordPiece tokenizer: cut a word greedily into the longest pieces of the vocabulary.

A piece that continues a word begins with ``##``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from fl_app.text.words import split_words

GOES_ON = "##"
PAD, UNKNOWN, CLS, SEP, MASK = SIGNS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""Tokens without text; no text is ever cut into them, since brackets are words of their own."""
LONGEST = 100
"""Letters of a word; a longer one is unknown."""


@dataclass(frozen=True)
class WordPiece:
    """A vocabulary; a token is a piece's place in it."""

    pieces: tuple[str, ...]
    lower: bool = True
    accents: bool = False
    """True if letters keep them."""

    def __post_init__(self) -> None:
        if len(set(self.pieces)) != len(self.pieces):
            raise ValueError("WordPiece: no piece may occur twice")
        missing = [sign for sign in SIGNS if sign not in self.pieces]
        if missing:
            raise ValueError(f"WordPiece: must have the pieces {' '.join(SIGNS)}, lacks {missing}")

    def __len__(self) -> int:
        return len(self.pieces)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {piece: place for place, piece in enumerate(self.pieces)}

    def sign(self, name: str) -> int:
        """Return the token of one of `SIGNS`."""
        if name not in SIGNS:
            raise ValueError(f"WordPiece: sign must be one of {', '.join(SIGNS)}; got {name!r}")
        return self._place[name]

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``; a word that has a letter without a piece is unknown as a whole."""
        words = split_words(text, lower=self.lower, accents=self.accents)
        return [token for word in words for token in self._cut(word)]

    def encode_sentence(self, text: str) -> list[int]:
        """Return the tokens of ``text`` between [CLS] and [SEP]."""
        return [self.sign(CLS), *self.encode(text), self.sign(SEP)]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the words with one space between; of signs, those of unknown and masked ones are shown."""
        shown: list[str] = []
        for token in tokens:
            piece = self.pieces[token]
            if piece in (PAD, CLS, SEP):
                continue
            if piece.startswith(GOES_ON) and shown and shown[-1] not in SIGNS:
                shown[-1] += piece.removeprefix(GOES_ON)
            else:
                shown.append(piece)
        return " ".join(shown)

    def _cut(self, word: str) -> list[int]:
        found = list(self._longest(word)) if len(word) <= LONGEST else [None]
        return [self.sign(UNKNOWN)] if None in found else [token for token in found if token is not None]

    def _longest(self, word: str) -> Iterator[int | None]:
        """Yield the pieces of a word from its beginning; None where no piece fits."""
        start = 0
        while start < len(word):
            before = GOES_ON if start else ""
            for end in range(len(word), start, -1):
                if (piece := before + word[start:end]) in self._place:
                    break
            else:
                yield None
                return
            yield self._place[piece]
            start = end
