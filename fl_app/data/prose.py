"""Sentences for a masked language model: of one's own files, or of the manual that comes with Python.

The embedded text is that of ``help('topics')``: English prose by many hands, on every machine that
has CPython, with a document for each of some eighty topics. It differs a little between Python's
versions; the vocabulary and the length of sentences do not, and so neither does the model.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_app.data.dataset import PADDING, Dataset, Samples
from fl_app.data.facts import Facts
from fl_app.data.places import DataUnavailable
from fl_app.seeding import SERVER, generator_for
from fl_app.text import WordPiece, english, read_tokenizer

_UTTERANCE = re.compile(r"([0-9]+)-[0-9]+-[0-9]+ (.*)")
"""A line of LibriSpeech's transcripts: who speaks, which chapter and number, and the text."""
_BETWEEN = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_PROSE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()-]*[.!?]")
"""A whole sentence, without the signs of code and grammars."""

logger = logging.getLogger(__name__)


def text(
    root: str | Path | None = None,
    tokenizer: str | Path | None = None,
    max_tokens: int = 32,
    masked: float = 0.15,
    test_fraction: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """Return sentences of at most ``max_tokens`` with [CLS] and [SEP]; longer ones are left out.

    ``root`` is a file with a sentence a line, or a folder of such ``*.txt``, each of which is a
    document; None takes Python's manual. A line that begins with an utterance's name, as in LibriSpeech's
    transcripts, is a document's whose name is the speaker. ``tokenizer`` is a folder of a Hugging Face
    WordPiece tokenizer; None takes ours. Of each sentence a share of ``masked`` is hidden in
    training. Every sentence occurs once; ``test_fraction`` of them, drawn by ``seed``, is for testing.
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"text: test_fraction must be in (0, 1), got {test_fraction}")
    if max_tokens < 3:
        raise ValueError(f"text: max_tokens must be at least 3, with [CLS] and [SEP], got {max_tokens}")
    documents = python_manual() if root is None else read_documents(Path(root).expanduser())
    vocabulary = english() if tokenizer is None else read_tokenizer(tokenizer)
    names, sources, rows = _encode(documents, vocabulary, max_tokens)
    if len(rows) < 2:
        raise ValueError(
            f"text: {root} must have two sentences of at most {max_tokens} tokens, has {len(rows)}"
        )
    samples = _samples(rows, sources, max_tokens)
    is_test = _mark_test(len(rows), test_fraction, seed)
    return Dataset(
        name="text",
        train=samples.take(~is_test),
        test=samples.take(is_test),
        num_classes=len(vocabulary),
        in_shape=(max_tokens,),
        mean=(),
        std=(),
        class_names=vocabulary.pieces,
        source_names=names,
        source_kind="document",
        vocabulary=vocabulary,
        masked=masked,
    )


def own_sentences(root: Path, facts: Facts, **settings: Any) -> Samples:
    """Return all sentences at ``root``, in the server's word pieces, no longer than its longest."""
    if not isinstance(facts.vocabulary, WordPiece):
        raise ValueError("text: the server says nothing of its word pieces")
    (longest,) = facts.in_shape
    _, sources, rows = _encode(read_documents(root), facts.vocabulary, longest)
    if not rows:
        raise ValueError(f"text: {root} must have sentences of at most {longest} tokens, has none")
    return _samples(rows, sources, longest)


def read_documents(root: Path) -> dict[str, list[str]]:
    """Return the lines of each document at ``root``."""
    files = sorted(root.rglob("*.txt")) if root.is_dir() else [root]
    documents: dict[str, list[str]] = {}
    for file in files:
        own = file.relative_to(root).with_suffix("").as_posix() if root.is_dir() else file.stem
        for line in _lines(file):
            said = _UTTERANCE.fullmatch(line)
            name, sentence = (said[1], said[2]) if said else (own, line)
            documents.setdefault(name, []).append(sentence)
    if not documents:
        raise DataUnavailable(f"text: {root} has no text: expected a file of lines, or *.txt in a folder")
    return documents


def python_manual() -> dict[str, list[str]]:
    """Return the prose of each topic that ``help()`` explains."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataUnavailable("text: this Python comes without its manual: give data.root") from error
    return {name: list(_prose(topic)) for name, topic in topics.items()}


def _lines(file: Path) -> Iterator[str]:
    try:
        content = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataUnavailable(f"text: cannot read {file}: {error}") from error
    yield from (line.strip() for line in content.splitlines() if line.strip())


def _prose(topic: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", topic):
        for sentence in _BETWEEN.split(" ".join(paragraph.split())):
            if _PROSE.fullmatch(sentence):
                yield sentence


def _encode(
    documents: Mapping[str, list[str]], vocabulary: WordPiece, longest: int
) -> tuple[tuple[str, ...], list[int], list[list[int]]]:
    """Return the names of documents, and of every sentence its document and its tokens."""
    names: list[str] = []
    sources: list[int] = []
    rows: list[list[int]] = []
    # topics quote each other: who trains on a sentence must not be tested on it
    seen: set[tuple[int, ...]] = set()
    left_out = 0
    for name, sentences in documents.items():
        for sentence in sentences:
            row = vocabulary.encode_sentence(sentence)
            left_out += len(row) > longest
            if not 2 < len(row) <= longest or tuple(row) in seen:
                continue
            if name not in names:
                names.append(name)
            seen.add(tuple(row))
            sources.append(names.index(name))
            rows.append(row)
    logger.info("text: %d sentences of %d documents; %d too long", len(rows), len(names), left_out)
    return tuple(names), sources, rows


def _samples(rows: list[list[int]], sources: list[int], longest: int) -> Samples:
    tokens = torch.full((len(rows), longest), PADDING)
    for row, sentence in zip(tokens, rows, strict=True):
        row[: len(sentence)] = torch.tensor(sentence)
    return Samples(tokens, tokens, torch.tensor(sources))


def _mark_test(number: int, fraction: float, seed: int) -> Tensor:
    count = min(max(1, round(fraction * number)), number - 1)
    order = torch.randperm(number, generator=generator_for(seed, 0, SERVER, "text/test"), device="cpu")
    marked = torch.zeros(number, dtype=torch.bool)
    marked[order[:count]] = True
    return marked
