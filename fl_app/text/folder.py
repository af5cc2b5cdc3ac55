"""Vocabulary from a Hugging Face folder: a WordPiece ``tokenizer.json``, or ``vocab.txt``.

Both are text: nothing in such a folder is ever run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fl_app.text.tokenizer import GOES_ON, LONGEST, UNKNOWN, WordPiece

_DEFAULTS = {"continuing_subword_prefix": GOES_ON, "unk_token": UNKNOWN, "max_input_chars_per_word": LONGEST}
"""Required settings of a model in ``tokenizer.json``."""


def read_tokenizer(folder: str | Path) -> WordPiece:
    """Return the tokenizer in ``folder``; of two files, ``tokenizer.json`` is the one that is read."""
    place = Path(folder).expanduser()
    if (path := place / "tokenizer.json").is_file():
        make, content = _from_json, _read_json(path)
    elif (path := place / "vocab.txt").is_file():
        make, content = _from_list, {**_settings(place), "pieces": _read(path).splitlines()}
    else:
        raise ValueError(f"read_tokenizer: expected tokenizer.json or vocab.txt in {place}, found neither")
    try:
        return make(content)
    except ValueError as error:
        raise ValueError(f"read_tokenizer: {path}: {error}") from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"read_tokenizer: cannot read {path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(_read(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"read_tokenizer: {path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"read_tokenizer: {path} must hold an object, got {type(content).__name__}")
    return content


def _settings(place: Path) -> dict[str, Any]:
    path = place / "tokenizer_config.json"
    return _read_json(path) if path.is_file() else {}


def _from_list(content: dict[str, Any]) -> WordPiece:
    lower = content.get("do_lower_case", True)
    strip = content.get("strip_accents")
    return WordPiece(tuple(content["pieces"]), _flag("do_lower_case", lower), not _strips(strip, lower))


def _from_json(content: dict[str, Any]) -> WordPiece:
    model = _object("model", content.get("model"))
    # old files do not name the kind; only WordPiece has a prefix of this kind
    kind = model.get("type", "WordPiece" if "continuing_subword_prefix" in model else None)
    if kind != "WordPiece":
        raise ValueError(f"the model must be of type WordPiece, got {kind!r}")
    for name, expected in _DEFAULTS.items():
        if (given := model.get(name, expected)) != expected:
            raise ValueError(f"{name} must be {expected!r}, got {given!r}")
    normalizer = _object("normalizer", content.get("normalizer"))
    if normalizer.get("type") != "BertNormalizer":
        raise ValueError(f"the normalizer must be BertNormalizer, got {normalizer.get('type')!r}")
    for name in ("clean_text", "handle_chinese_chars"):
        if normalizer.get(name, True) is not True:
            raise ValueError(f"{name} must be true, got {normalizer[name]!r}")
    lower = _flag("lowercase", normalizer.get("lowercase", True))
    vocabulary = _object("vocab", model.get("vocab"))
    if sorted(vocabulary.values(), key=str) != sorted(range(len(vocabulary)), key=str):
        raise ValueError(f"vocab must number its {len(vocabulary)} pieces from 0 on")
    pieces = tuple(sorted(vocabulary, key=lambda piece: int(vocabulary[piece])))
    return WordPiece(pieces, lower, not _strips(normalizer.get("strip_accents"), lower))


def _object(what: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object, got {type(value).__name__}")
    return value


def _flag(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{what} must be true or false, got {value!r}")
    return value


def _strips(strip: object, lower: bool) -> bool:
    """Return whether accents are removed: the same as lower-casing, unless set."""
    return lower if strip is None else _flag("strip_accents", strip)
