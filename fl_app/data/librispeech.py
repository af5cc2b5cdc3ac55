"""Utterances in LibriSpeech's layout (Panayotov et al., 2015): speaker/chapter/speaker-chapter-number.flac.

A chapter's folder has its transcripts in one file, ``*.trans.txt``, with a line for each utterance:
its name and what was said.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fl_app.data.dataset import PADDING, Dataset, Samples
from fl_app.data.facts import Facts
from fl_app.data.log_mel import log_mel, standardise
from fl_app.data.places import DataUnavailable
from fl_app.data.shares import mark_share
from fl_app.data.word_pieces import Vocabulary, letters, normal, read_pieces
from fl_app.seeding import SERVER, generator_for

RATE = 16_000
SPLITS = ("speakers", "utterances")
_NAME = re.compile(r"([0-9]+)-[0-9]+-[0-9]+")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Utterance:
    """One recording with its speaker and its transcript."""

    audio: Path
    speaker: str
    text: str


def speech(
    root: str | Path,
    pieces: str | Path | None = None,
    mels: int = 40,
    max_seconds: float = 4.0,
    max_characters: int = 50,
    split: str = "speakers",
    test_fraction: float = 0.2,
    seed: int = 0,
    vocabulary: int | None = None,
) -> Dataset:
    """Return the utterances below ``root`` that are no longer than ``max_seconds`` and ``max_characters``.

    ``pieces`` is a file of word pieces, of which the first ``vocabulary`` are used (None: all); without a
    file, the pieces are single letters. ``test_fraction``, drawn by ``seed``, is set aside for testing: of
    the speakers (``split="speakers"``, whose utterances are then not trained on), or of each speaker's
    utterances (``split="utterances"``; a speaker with a single one keeps it).
    """
    if not 0 < test_fraction < 1:
        raise ValueError(f"speech: test_fraction must be in (0, 1), got {test_fraction}")
    if split not in SPLITS:
        raise ValueError(f"speech: split must be one of {', '.join(SPLITS)}; got {split!r}")
    if not (max_seconds > 0 and max_characters > 0):
        raise ValueError(
            f"speech: max_seconds and max_characters must be positive, got {max_seconds} and {max_characters}"
        )
    words = letters() if pieces is None else read_pieces(pieces, vocabulary)
    heard = _hear_all(Path(root).expanduser(), mels, max_seconds, max_characters)
    samples, names = _samples(heard, words)
    is_test = _mark_test(samples.groups, split, test_fraction, seed)
    if not is_test.any() or is_test.all():
        raise ValueError(
            f"speech: {len(heard)} utterances of {len(names)} speakers are too few to split by {split}"
        )
    return Dataset(
        name="speech",
        train=samples.take(~is_test),
        test=samples.take(is_test),
        num_classes=len(words),
        in_shape=(samples.inputs.shape[1], mels),
        mean=(),
        std=(),
        class_names=words.pieces,
        source_names=names,
        source_kind="speaker",
        vocabulary=words,
    )


def own_utterances(
    root: Path,
    facts: Facts,
    mels: int = 40,
    max_seconds: float = 4.0,
    max_characters: int = 50,
    **settings: Any,
) -> Samples:
    """Return all utterances below ``root``, in the server's word pieces, no longer than its longest."""
    if not isinstance(facts.vocabulary, Vocabulary):
        raise ValueError("speech: the server says nothing of its word pieces")
    longest = facts.in_shape[0]
    heard = [
        (said, features)
        for said, features in _hear_all(root, mels, max_seconds, max_characters)
        if len(features) <= longest
    ]
    if not heard:
        raise ValueError(f"speech: {root} must have utterances of at most {longest} frames, has none")
    samples, _ = _samples(heard, facts.vocabulary)
    missing = longest - samples.inputs.shape[1]
    return replace(samples, inputs=torch.nn.functional.pad(samples.inputs, (0, 0, 0, missing)))


def _hear_all(
    root: Path, mels: int, max_seconds: float, max_characters: int
) -> list[tuple[Utterance, Tensor]]:
    utterances = find_utterances(root, max_characters)
    heard = [
        (said, features) for said in utterances if (features := _hear(said, mels, max_seconds)) is not None
    ]
    if not heard:
        raise ValueError(
            f"speech: {root} must have utterances of at most {max_seconds} seconds and {max_characters} "
            "characters, has none"
        )
    logger.info("speech: %d utterances of %d in %s are short enough", len(heard), len(utterances), root)
    return heard


def _samples(
    heard: list[tuple[Utterance, Tensor]], vocabulary: Vocabulary
) -> tuple[Samples, tuple[str, ...]]:
    """Return the utterances, and the names of the speakers."""
    names = tuple(sorted({said.speaker for said, _ in heard}, key=lambda name: (int(name), name)))
    samples = Samples(
        inputs=_pad([features for _, features in heard], 0.0),
        labels=_pad([_tokens(said, vocabulary) for said, _ in heard], PADDING),
        sources=torch.tensor([names.index(said.speaker) for said, _ in heard]),
    )
    return samples, names


def find_utterances(root: Path, max_characters: int) -> list[Utterance]:
    """Return the recorded transcripts below ``root`` that are short enough, by name."""
    found = {}
    for file in sorted(root.rglob("*.trans.txt")):
        for name, text in _lines(file):
            if not 0 < len(text) <= max_characters:
                continue
            speaker = name.split("-")[0]
            places = (file.parent / f"{name}{ending}" for ending in (".flac", ".wav"))
            audio = next((place for place in places if place.is_file()), None)
            if audio is not None:
                found[name] = Utterance(audio, speaker, text)
    if not found:
        hint = "expected speaker/chapter/*.trans.txt beside *.flac or *.wav, and short enough transcripts"
        raise DataUnavailable(f"speech: {root} has no utterances; {hint}")
    return [found[name] for name in sorted(found, key=lambda name: [int(part) for part in name.split("-")])]


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        name, _, text = line.strip().partition(" ")
        if not name:
            continue
        if not _NAME.fullmatch(name):
            expected = "speaker-chapter-number and a text"
            raise ValueError(f"speech: {file}, line {number}: expected {expected}, got {line[:40]!r}")
        yield name, normal(text)


def _hear(said: Utterance, mels: int, max_seconds: float) -> Tensor | None:
    """Return the features of a recording, or None if it is too long."""
    import soundfile

    try:
        with soundfile.SoundFile(said.audio) as file:
            if (file.samplerate, file.channels) != (RATE, 1):
                got = f"{file.channels} channels at {file.samplerate} Hz"
                raise ValueError(f"speech: {said.audio} must have one channel at {RATE} Hz, got {got}")
            if file.frames > max_seconds * RATE:  # before it is decoded
                return None
            waveform = torch.from_numpy(file.read(dtype="float32"))
    except (OSError, soundfile.SoundFileError) as error:
        raise ValueError(f"speech: cannot read {said.audio}: {error}") from error
    try:
        features = standardise(log_mel(waveform, RATE, mels))
    except ValueError as error:
        raise ValueError(f"speech: {said.audio}: {error}") from error
    if not features[-1].any():
        # a frame of zeros means that the utterance is over
        raise ValueError(f"speech: {said.audio} must have a sound, got the same in every frame")
    return features


def _tokens(said: Utterance, vocabulary: Vocabulary) -> Tensor:
    return torch.tensor([*vocabulary.encode(said.text), vocabulary.end])


def _pad(rows: list[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def _mark_test(speakers: Tensor, split: str, fraction: float, seed: int) -> Tensor:
    if split == "utterances":
        return mark_share(
            speakers, fraction, lambda speaker: generator_for(seed, 0, SERVER, f"speech/{speaker}/test")
        )
    everyone = speakers.unique()
    count = min(max(1, round(fraction * len(everyone))), len(everyone) - 1)
    order = torch.randperm(
        len(everyone), generator=generator_for(seed, 0, SERVER, "speech/test"), device="cpu"
    )
    return torch.isin(speakers, everyone[order[:count]])
