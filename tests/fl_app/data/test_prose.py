"""Sentences: whole, each once, in the documents that they are from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fl_app.data import PADDING, DataUnavailable, text
from fl_app.data.prose import python_manual, read_documents
from fl_app.text import english

UTTERANCES = Path(__file__).parents[4] / "shared/data/librispeech-transcripts/utterances.txt"
LINES = ["the gate was open", "we waited for the train", "no word was said", "she had come at last"]


def sentences(samples) -> list[list[int]]:
    return [row[row != PADDING].tolist() for row in samples.inputs]


def spelled(samples) -> set[str]:
    return {english().decode(tokens) for tokens in sentences(samples)}


def test_the_embedded_sentences_are_english_and_each_is_there_once():
    data = text()
    every = sentences(data.train) + sentences(data.test)
    assert len({tuple(tokens) for tokens in every}) == len(every) > 300
    begin, end, unknown = (english().sign(name) for name in ("[CLS]", "[SEP]", "[UNK]"))
    for tokens in every:
        assert (tokens[0], tokens[-1]) == (begin, end)
        assert 3 <= len(tokens) <= 32
        assert unknown not in tokens
    words = " ".join(spelled(data.train)).split()
    assert words.count("the") > 200
    assert len(data.test) == round(0.2 * len(every))
    assert (data.in_shape, data.num_classes, data.masked) == ((32,), 2000, 0.15)


def test_documents_of_the_embedded_text_are_topics_of_the_manual():
    data = text()
    assert data.group_kind == "document"
    assert {"class", "exceptions"} <= set(data.group_names) <= set(python_manual())
    own = {english().decode(english().encode(sentence)) for sentence in python_manual()["exceptions"]}
    mine = data.train.take(data.train.groups == data.group_names.index("exceptions"))
    assert spelled(mine) <= own


def test_a_file_has_a_sentence_a_line(tmp_path):
    file = tmp_path / "letter.txt"
    file.write_text("\n\n".join([*LINES, LINES[0]]) + "\n")
    data = text(file, test_fraction=0.25)
    assert spelled(data.train) | spelled(data.test) == set(LINES)
    assert (len(data.train), len(data.test)) == (3, 1)
    assert data.source_names == ("letter",)


def test_the_files_of_a_folder_are_its_documents(tmp_path):
    for number, line in enumerate(LINES):
        (tmp_path / f"part{number % 2}").mkdir(exist_ok=True)
        (tmp_path / f"part{number % 2}" / f"{number}.txt").write_text(line)
    data = text(tmp_path, test_fraction=0.25)
    assert data.source_names == ("part0/0", "part0/2", "part1/1", "part1/3")
    assert len(data.train.groups.unique()) == 3


def test_transcripts_have_their_speakers_for_documents(tmp_path):
    file = tmp_path / "said.txt"
    file.write_text("12-7-0 THE GATE WAS OPEN\n9-1-4 NO WORD\n12-7-1 AT LAST\n")
    assert read_documents(file) == {"12": ["THE GATE WAS OPEN", "AT LAST"], "9": ["NO WORD"]}


def test_transcripts_of_books_are_read():
    if not UTTERANCES.is_file():
        pytest.skip(f"{UTTERANCES.name} of LibriSpeech's transcripts is not there")
    data = text(UTTERANCES)
    assert all(name.isdigit() for name in data.source_names)
    assert len(data.train) + len(data.test) > 300


def test_sentences_that_are_too_long_are_left_out(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("\n".join([*LINES, "word " * 40]))
    data = text(file, max_tokens=8)
    assert data.in_shape == (8,)
    short = {line for line in LINES if len(english().encode_sentence(line)) <= 8}
    assert spelled(data.train) | spelled(data.test) == short


def test_the_seed_draws_who_is_tested():
    one, same, other = text(), text(), text(seed=1)
    assert torch.equal(one.test.inputs, same.test.inputs)
    assert not torch.equal(one.test.inputs, other.test.inputs)


def test_another_tokenizer_has_other_classes(tmp_path):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    pieces += [f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("abc\nbad cab\n")
    data = text(tmp_path / "lines", tokenizer=tmp_path)
    assert data.class_names == tuple(pieces)
    decoded = {data.vocabulary.decode(tokens) for tokens in sentences(data.train) + sentences(data.test)}
    assert decoded == {"abc", "bad cab"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test_fraction": 1.0}, r"text: test_fraction must be in \(0, 1\), got 1.0"),
        ({"max_tokens": 2}, "text: max_tokens must be at least 3"),
        ({"masked": 1.0}, r"masked must be in \(0, 1\), got 1.0"),
        ({"max_tokens": 3}, "must have two sentences of at most 3 tokens, has"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        text(**settings)


def test_a_place_without_text_is_named(tmp_path):
    with pytest.raises(DataUnavailable, match="has no text: expected a file of lines"):
        text(tmp_path)
    with pytest.raises(DataUnavailable, match="text: cannot read"):
        text(tmp_path / "nothing.txt")
