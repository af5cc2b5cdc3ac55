"""Facts on the data that all nodes must share when clients bring their own samples; orders carry them.

Without it, a client whose folder lacks a class would number the others differently, and one that
scales by its own mean would train another model than the server tests.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from typing import Any

from fl_app.data.dataset import Dataset
from fl_app.data.row_encoding import RowEncoding
from fl_app.data.vocabularies import plain_vocabulary, read_vocabulary
from fl_app.data.word_pieces import Vocabulary
from fl_app.text import WordPiece


@dataclass(frozen=True, eq=False)
class Facts:
    """Server's knowledge of the task, from samples of its own."""

    class_names: tuple[str, ...]
    in_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    encoding: RowEncoding | None
    vocabulary: Vocabulary | WordPiece | None
    masked: float | None = None
    """The share of a sentence's tokens that a model is asked for; of sentences alone."""

    def __post_init__(self) -> None:
        if len(set(self.class_names)) != len(self.class_names) or not self.class_names:
            raise ValueError(f"Facts: class names must differ, got {self.class_names}")
        if not all(isinstance(size, int) and size > 0 for size in self.in_shape):
            raise ValueError(f"Facts: in_shape must be positive numbers, got {self.in_shape}")
        if self.masked is not None and not 0 < self.masked < 1:
            raise ValueError(f"Facts: masked must be in (0, 1), got {self.masked}")
        if not all(map(isfinite, self.mean + self.std)) or min(self.std, default=1.0) <= 0:
            raise ValueError(f"Facts: mean and std must be finite, std positive, got {self.mean}, {self.std}")

    @property
    def num_classes(self) -> int:
        """Return how many classes there are."""
        return len(self.class_names)

    def to_json(self) -> str:
        """Return a text from which `from_json` makes the same facts."""
        plain = {
            "class_names": self.class_names,
            "in_shape": self.in_shape,
            "mean": self.mean,
            "std": self.std,
            "encoding": None if self.encoding is None else self.encoding.to_plain(),
            "vocabulary": self._settings(),
            "masked": self.masked,
        }
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))

    def _settings(self) -> dict[str, Any] | None:
        """Return the vocabulary without its pieces, which are the classes."""
        plain = plain_vocabulary(self.vocabulary)
        return None if plain is None else {key: value for key, value in plain.items() if key != "pieces"}

    @classmethod
    def from_json(cls, text: str) -> Facts:
        """Return the facts in ``text``, checked."""
        try:
            plain: dict[str, Any] = json.loads(text)
            class_names = tuple(map(str, plain["class_names"]))
            return cls(
                class_names=class_names,
                in_shape=tuple(plain["in_shape"]),
                mean=tuple(map(float, plain["mean"])),
                std=tuple(map(float, plain["std"])),
                encoding=None if plain["encoding"] is None else RowEncoding.from_plain(plain["encoding"]),
                vocabulary=_vocabulary(plain["vocabulary"], class_names),
                masked=None if plain["masked"] is None else float(plain["masked"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"Facts: {text[:80]!r} cannot be read: {error!r}") from error


def facts_of(dataset: Dataset) -> Facts:
    """Return the facts on ``dataset`` that clients need to train on samples of their own."""
    return Facts(
        class_names=dataset.class_names,
        in_shape=dataset.in_shape,
        mean=dataset.mean,
        std=dataset.std,
        encoding=dataset.encoding,
        vocabulary=dataset.vocabulary,
        masked=dataset.masked,
    )


def _vocabulary(settings: dict[str, Any] | None, pieces: tuple[str, ...]) -> Vocabulary | WordPiece | None:
    return None if settings is None else read_vocabulary(settings | {"pieces": pieces})
