"""Text to tokens and back; how a word is cut."""

from __future__ import annotations

import string
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.data.word_pieces import Vocabulary, letters, normal, read_pieces

SIGNS = ("<unk>", "<s>", "</s>")


@st.composite
def vocabularies(draw):
    """A few letters, then joins of any two earlier pieces that leave ``▁`` at the front."""
    pieces = ["▁", *"abcd'"]
    for _ in range(draw(st.integers(0, 12))):
        left = draw(st.sampled_from(pieces))
        right = draw(st.sampled_from([piece for piece in pieces if piece[0] != "▁"]))
        if left + right not in pieces:
            pieces.append(left + right)
    return Vocabulary((*SIGNS, *pieces))


@given(vocabularies(), st.text("abcdABCD' ▁\n"))
@settings(max_examples=300, deadline=None)
def test_known_letters_come_back_in_small_letters_with_single_spaces(vocabulary, text):
    tokens = vocabulary.encode(text)
    assert vocabulary.decode(tokens) == normal(text)
    assert vocabulary.decode([vocabulary.start, *tokens, vocabulary.end, *tokens]) == normal(text)
    assert not {vocabulary.unknown, vocabulary.start, vocabulary.end} & set(tokens)


@given(st.text())
@settings(deadline=None)
def test_any_text_has_tokens_and_those_of_the_result_are_the_same(text):
    vocabulary = letters()
    tokens = vocabulary.encode(text)
    assert all(0 <= token < len(vocabulary) for token in tokens)
    known = vocabulary.decode([token for token in tokens if token != vocabulary.unknown])
    assert set(known) <= {*string.ascii_lowercase, "'", " "}
    assert vocabulary.decode(vocabulary.encode(known)) == known


@given(vocabularies(), st.data())
@settings(deadline=None)
def test_the_earliest_piece_is_joined_first(vocabulary, data):
    """The same by rewriting all at once: for each piece in turn, until nothing changes."""
    some = [piece.strip("▁") for piece in vocabulary.pieces[len(SIGNS) + 1 :]]
    word = "".join(data.draw(st.lists(st.sampled_from(some), min_size=1, max_size=4)))
    cut = ["▁", *word]
    while True:
        known = [p for p in vocabulary.pieces if any(a + b == p for a, b in pairwise(cut))]
        if not known:
            break
        i = next(i for i in range(len(cut)) if cut[i] + cut[i + 1] == known[0])
        cut[i : i + 2] = [known[0]]
    assert [vocabulary.pieces[token] for token in vocabulary.encode(word)] == cut


def test_hand_worked():
    vocabulary = Vocabulary((*SIGNS, "▁", "a", "n", "d", "an", "▁an", "nd", "and"))

    def cut(text):
        return [vocabulary.pieces[token] for token in vocabulary.encode(text)]

    assert cut("AND AN") == ["▁an", "d", "▁an"]  # "an" comes before "nd", and "▁an" before "and"
    assert cut("dand") == ["▁", "d", "and"]
    assert cut("an7") == ["▁an", "<unk>"]
    assert vocabulary.decode(vocabulary.encode("an7")) == "an<unk>"


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((*SIGNS, "▁", "a", "a"), "no piece may occur twice"),
        (("<unk>", "<s>", "▁", "a"), r"lacks \['</s>'\]"),
        ((*SIGNS, "a"), r"lacks \['▁'\]"),
        ((*SIGNS, "▁", ""), "no piece may be empty"),
    ],
)
def test_refuses_a_broken_vocabulary_and_names_its_file(pieces, message, tmp_path):
    with pytest.raises(ValueError, match=f"Vocabulary: .*{message}"):
        Vocabulary(pieces)
    path = tmp_path / "pieces.txt"
    path.write_text("\n".join(pieces) + "\n" * (pieces[-1] == ""), encoding="utf-8")
    with pytest.raises(ValueError, match=f"pieces.txt: .*{message}"):
        read_pieces(path)


def test_the_first_pieces_are_a_vocabulary_too(tmp_path):
    path = tmp_path / "pieces.txt"
    path.write_text("\n".join((*SIGNS, "▁", "a", "b", "ab", "▁ab")), encoding="utf-8")
    whole, half = read_pieces(path), read_pieces(path, first=len(SIGNS) + 4)
    cut = [[words.pieces[token] for token in words.encode("ab")] for words in (whole, half)]
    assert cut == [["▁ab"], ["▁", "ab"]]
    with pytest.raises(ValueError, match="first must be at least 1, got 0"):
        read_pieces(path, first=0)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*none\.txt"):
        read_pieces(tmp_path / "none.txt")


def test_the_pieces_of_librispeech_were_learnt_by_joining_in_their_order(shared_data):
    """Then, and only then, each of 16k pieces is cut into itself alone; and transcripts come back."""
    vocabulary = read_pieces(shared_data / "librispeech-transcripts" / "wordpieces.txt")
    whole = [piece for piece in vocabulary.pieces if piece[0] == "▁" and len(piece) > 1]
    assert len(whole) > 10_000
    split = [piece for piece in whole if [vocabulary.pieces[t] for t in vocabulary.encode(piece)] != [piece]]
    assert not split
    lines = (shared_data / "librispeech-transcripts" / "utterances.txt").read_text().splitlines()
    for line in lines:
        text = line.partition(" ")[2]
        assert vocabulary.decode(vocabulary.encode(text)) == text.lower()
