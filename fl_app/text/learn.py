"""``python -m fl_app.text.learn [--size N] < TEXT > VOCABULARY``: learn pieces from lines of English.

The most frequent pair of neighbours is joined, again and again. The project's ``english.json`` was
learnt from 401 transcripts of LibriSpeech, which are sentences of books in the public domain.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from fl_app.text.tokenizer import GOES_ON, SIGNS
from fl_app.text.words import split_words

SIZE = 2000


def learn_pieces(lines: Iterable[str], size: int = SIZE) -> list[str]:
    """Return at most ``size`` pieces: signs, all printable ASCII, and then the unions in their order."""
    letters = string.ascii_lowercase + string.digits
    pieces = [*SIGNS, *string.punctuation, *letters, *(GOES_ON + letter for letter in letters)]
    if size < len(pieces):
        raise ValueError(f"learn_pieces: size must be at least {len(pieces)}, got {size}")
    counts = Counter(word for line in lines for word in split_words(line) if set(word) <= set(letters))
    words = {word: [word[0], *(GOES_ON + letter for letter in word[1:])] for word in counts}
    known = set(pieces)
    while len(pieces) < size:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, parts in words.items():
            for pair in pairwise(parts):
                pairs[pair] += counts[word]
        # by letters where counts are equal, so that the same text always gives the same pieces
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None:
            break
        union = best[0] + best[1].removeprefix(GOES_ON)
        if union not in known:
            known.add(union)
            pieces.append(union)
        words = {word: _join(parts, best, union) for word, parts in words.items()}
    return pieces


def _join(parts: list[str], pair: tuple[str, str], union: str) -> list[str]:
    joined: list[str] = []
    for part in parts:
        if joined and (joined[-1], part) == pair:
            joined[-1] = union
        else:
            joined.append(part)
    return joined


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="fl_app.text.learn", description=__doc__)
    parser.add_argument("--size", type=int, default=SIZE)
    pieces = learn_pieces(sys.stdin, parser.parse_args().size)
    print(json.dumps(pieces, indent=0))
