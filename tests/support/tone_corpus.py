"""A corpus in LibriSpeech's layout whose words are tones: small, quick to learn, made anew by each test."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import soundfile

RATE = 16_000
TONES = {"LOW": 300.0, "MID": 1100.0, "TOP": 3500.0}
WORD_SECONDS = 0.12


def write_corpus(root: Path, speakers: int = 6, chapters: int = 1) -> Path:
    """Write an utterance of every one or two words for each speaker and chapter; voices differ in pitch."""
    texts = [" ".join(words) for n in (1, 2) for words in itertools.product(TONES, repeat=n)]
    for speaker, chapter in itertools.product(range(10, 10 + speakers), range(chapters)):
        lines = []
        for number, text in enumerate(texts):
            name = f"{speaker}-{chapter}-{number:04d}"
            write_audio(root / str(speaker) / str(chapter) / f"{name}.flac", tones(text, speaker))
            lines.append(f"{name} {text}")
        write_transcripts(root, speaker, chapter, lines)
    return root


def tones(text: str, speaker: int = 0) -> np.ndarray:
    """Return what ``speaker`` would say, with a little noise."""
    draw = np.random.default_rng(speaker)
    time = np.arange(round(WORD_SECONDS * RATE)) / RATE
    pitch = 1 + 0.01 * (speaker % 10)
    words = [0.3 * np.sin(2 * np.pi * TONES[word] * pitch * time) for word in text.split()]
    waveform = np.concatenate(words)
    return waveform + 0.01 * draw.standard_normal(len(waveform))


def write_audio(path: Path, waveform: np.ndarray, rate: int = RATE) -> None:
    """Write a recording; its ending says in which format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, waveform, rate)


def write_transcripts(root: Path, speaker: int, chapter: int, lines: list[str]) -> None:
    """Write a chapter's transcripts."""
    folder = root / str(speaker) / str(chapter)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{speaker}-{chapter}.trans.txt").write_text("\n".join(lines) + "\n")
