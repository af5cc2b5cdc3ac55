"""Utterances in LibriSpeech's layout: which are used, what of them, and who is for testing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tone_corpus import tones, write_audio, write_corpus, write_transcripts

from fl_app.data import PADDING, DataUnavailable, speech
from fl_app.data.log_mel import log_mel, standardise


def said(dataset, samples) -> list[str]:
    return [dataset.vocabulary.decode(row[row != PADDING].tolist()) for row in samples.labels]


def test_every_utterance_is_there_with_its_speaker_its_words_and_an_end(tmp_path):
    data = speech(write_corpus(tmp_path, speakers=5, chapters=2))
    assert (len(data.train), len(data.test)) == (4 * 24, 24)
    assert data.group_names == ("10", "11", "12", "13", "14")
    texts = ["low", "mid", "top", *(f"{a} {b}" for a in ("low", "mid", "top") for b in ("low", "mid", "top"))]
    assert sorted(said(data, data.train)) == sorted(texts * 8)
    assert (data.num_classes, data.in_shape) == (31, (21, 40))
    for row in data.train.labels:
        assert row[row != PADDING][-1] == data.vocabulary.end


def test_the_inputs_are_standardised_frames_with_zeros_after_the_end(tmp_path):
    waveform = np.round(tones("TOP LOW", 3) * 32_767).astype(np.int16)
    write_audio(tmp_path / "1" / "2" / "1-2-0.wav", waveform)
    write_audio(tmp_path / "7" / "2" / "7-2-0.wav", tones("LOW", 7))
    write_transcripts(tmp_path, 1, 2, ["1-2-0 TOP LOW"])
    write_transcripts(tmp_path, 7, 2, ["7-2-0 LOW"])
    data = speech(tmp_path, mels=16)
    rows = {name: s.inputs[0] for s in (data.train, data.test) for name in said(data, s)}
    heard = torch.from_numpy(waveform / np.float32(32_768))
    torch.testing.assert_close(rows["top low"], standardise(log_mel(heard, 16_000, 16)))
    frames = 1 + (round(0.12 * 16_000) - 512) // 160
    assert rows["low"][:frames].any(dim=1).all()
    assert not rows["low"][frames:].any()


def test_what_is_too_long_or_not_recorded_is_left_out(tmp_path):
    write_corpus(tmp_path, speakers=2)
    write_transcripts(tmp_path, 30, 0, ["30-0-0 LOW MID TOP", "30-0-1 MID", "30-0-2"])
    write_audio(tmp_path / "30" / "0" / "30-0-0.flac", tones("LOW MID TOP"))
    assert len(said_all(speech(tmp_path))) == 25
    assert "low mid top" in said_all(speech(tmp_path))
    assert "low mid top" not in said_all(speech(tmp_path, max_seconds=0.3))
    assert "low mid top" not in said_all(speech(tmp_path, max_characters=7))
    assert set(said_all(speech(tmp_path, max_characters=3))) == {"low", "mid", "top"}


def said_all(data) -> list[str]:
    return said(data, data.train) + said(data, data.test)


def test_nobody_who_is_tested_trains_unless_utterances_are_split(tmp_path):
    root = write_corpus(tmp_path, speakers=10)
    data = speech(root, test_fraction=0.3)
    trained, tested = (set(part.sources.tolist()) for part in (data.train, data.test))
    assert (len(trained), len(tested)) == (7, 3)
    assert not trained & tested
    mixed = speech(root, split="utterances", test_fraction=0.25)
    for part, count in ((mixed.train, 9), (mixed.test, 3)):
        assert torch.bincount(part.sources).tolist() == [count] * 10


def test_the_seed_draws_who_is_tested(tmp_path):
    root = write_corpus(tmp_path, speakers=10)
    for split in ("speakers", "utterances"):
        one, same, other = (speech(root, split=split, seed=seed) for seed in (1, 1, 2))
        assert torch.equal(one.test.inputs, same.test.inputs)
        assert not torch.equal(one.test.inputs, other.test.inputs)


def test_word_pieces_come_from_a_file(tmp_path):
    pieces = ["<unk>", "<s>", "</s>", "▁", *"lowmidtp", "lo", "▁lo", "▁low", "mi"]
    (tmp_path / "pieces.txt").write_text("\n".join(pieces), encoding="utf-8")
    data = speech(write_corpus(tmp_path / "corpus", speakers=2), pieces=tmp_path / "pieces.txt")
    assert data.class_names == data.vocabulary.pieces == tuple(pieces)
    low = data.train.labels[said(data, data.train).index("low")]
    assert low[:3].tolist() == [pieces.index("▁low"), data.vocabulary.end, PADDING]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test_fraction": 1.0}, r"test_fraction must be in \(0, 1\), got 1.0"),
        ({"split": "chapters"}, "split must be one of speakers, utterances; got 'chapters'"),
        ({"max_seconds": 0}, "max_seconds and max_characters must be positive, got 0 and 50"),
        ({"max_seconds": 0.05}, "at most 0.05 seconds and 50 characters, has none"),
        ({"mels": 300}, "300 bands are too many"),
    ],
)
def test_refuses_settings_that_cannot_be(tmp_path, settings, message):
    with pytest.raises(ValueError, match=f"speech: .*{message}"):
        speech(write_corpus(tmp_path, speakers=2), **settings)


def test_refuses_recordings_and_transcripts_of_another_kind_and_names_them(tmp_path):
    write_corpus(tmp_path / "one", speakers=1)
    with pytest.raises(ValueError, match="12 utterances of 1 speakers are too few to split by speakers"):
        speech(tmp_path / "one")
    for name, waveform, rate, message in (
        ("rate", tones("LOW"), 8_000, "must have one channel at 16000 Hz, got 1 channels at 8000 Hz"),
        ("stereo", np.stack([tones("LOW")] * 2, axis=1), 16_000, "got 2 channels at 16000 Hz"),
        ("silent", np.zeros(4000), 16_000, "must have a sound, got the same in every frame"),
        ("short", np.ones(100), 16_000, "at least 512 samples, got 100"),
    ):
        write_audio(tmp_path / name / "1" / "0" / "1-0-0.wav", waveform, rate)
        write_transcripts(tmp_path / name, 1, 0, ["1-0-0 LOW"])
        with pytest.raises(ValueError, match=rf"speech: .*1-0-0\.wav.*{message}"):
            speech(tmp_path / name)
    (tmp_path / "short" / "1" / "0" / "1-0-0.wav").write_bytes(b"not audio")
    with pytest.raises(ValueError, match=r"speech: cannot read .*1-0-0\.wav"):
        speech(tmp_path / "short")
    write_transcripts(tmp_path / "short", 1, 0, ["../../secret LOW"])
    with pytest.raises(
        ValueError, match=r"line 1: expected speaker-chapter-number and a text, got '\.\./\.\./secret"
    ):
        speech(tmp_path / "short")
    with pytest.raises(DataUnavailable, match="nowhere has no utterances"):
        speech(tmp_path / "nowhere")


def test_the_real_utterances(shared_data):
    folder = shared_data / "speech"
    if not folder.is_dir():
        pytest.skip(f"no recordings at {folder}")
    data = speech(
        folder, pieces=shared_data / "librispeech-transcripts" / "wordpieces.txt", max_characters=12
    )
    assert data.num_classes == 16_328
    stated = {
        line.partition(" ")[2].strip().lower()
        for file in folder.rglob("*.trans.txt")
        for line in file.read_text().splitlines()
    }
    assert set(said_all(data)) == {text for text in stated if len(text) <= 12}
