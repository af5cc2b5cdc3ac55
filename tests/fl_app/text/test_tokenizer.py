"""WordPiece: the longest pieces first, nothing lost in what has no unknown word, and folders of others."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.text import WordPiece, english, read_tokenizer
from fl_app.text.learn import learn_pieces
from fl_app.text.tokenizer import SIGNS, UNKNOWN
from fl_app.text.words import split_words

TINY = WordPiece((*SIGNS, "un", "##aff", "##able", "##a", "want", "##ed", "a", ",", "é"))


def pieces(tokenizer: WordPiece, text: str) -> list[str]:
    return [tokenizer.pieces[token] for token in tokenizer.encode(text)]


def test_takes_the_longest_piece_that_fits():
    assert pieces(TINY, "unaffable, wanted") == ["un", "##aff", "##able", ",", "want", "##ed"]
    assert pieces(TINY, "aaa") == ["a", "##a", "##a"]


def test_a_word_that_cannot_be_cut_to_its_end_is_unknown_as_a_whole():
    assert pieces(TINY, "unwanted a") == [UNKNOWN, "a"]
    assert pieces(TINY, "a" * 100).count("##a") == 99
    assert pieces(TINY, "a" * 101) == [UNKNOWN]


def test_no_text_becomes_a_sign():
    assert english().sign("[MASK]") not in english().encode("[MASK] [ mask ] [PAD]")
    assert pieces(TINY, "[CLS]") == [UNKNOWN] * 3


def test_a_sentence_stands_between_its_signs():
    tokens = english().encode_sentence("Well!")
    assert [english().pieces[token] for token in tokens] == ["[CLS]", "well", "!", "[SEP]"]
    assert english().decode(tokens) == "well !"


def test_decoding_shows_a_piece_that_goes_on_from_nothing():
    tokens = [
        TINY.pieces.index(piece) for piece in ("##able", "[MASK]", "##ed", "[UNK]", "[PAD]", "un", "##a")
    ]
    assert TINY.decode(tokens) == "##able [MASK] ##ed [UNK] una"


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_printable_ascii_is_never_unknown_and_comes_back(text):
    tokens = english().encode(text)
    assert english().sign(UNKNOWN) not in tokens
    assert english().decode(tokens) == " ".join(split_words(text))


@given(st.text(max_size=60))
def test_what_is_read_of_any_text_is_cut_alike_again(text):
    tokens = [token for token in english().encode(text) if token != english().sign(UNKNOWN)]
    assert english().encode(english().decode(tokens)) == tokens


@given(st.text("abcdefghij", min_size=1, max_size=20), st.sets(st.text("abcdefghij", min_size=1, max_size=4)))
def test_cuts_as_a_search_through_all_prefixes_does(word, parts):
    own = sorted({part for part in parts} | {"##" + part for part in parts})
    tokenizer = WordPiece((*SIGNS, *own))
    expected, rest, before = [], word, ""
    while rest:
        fitting = [part for part in parts if rest.startswith(part)]
        if not fitting:
            expected = [UNKNOWN]
            break
        longest = max(fitting, key=len)
        expected.append(before + longest)
        rest, before = rest[len(longest) :], "##"
    assert pieces(tokenizer, word) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Héllo,World", ["hello", ",", "world"]),
        ("a\tb\u200bc\x00d\n", ["a", "bcd"]),
        ("x中文y", ["x", "中", "文", "y"]),
        ("it's “so”", ["it", "'", "s", "“", "so", "”"]),
    ],
)
def test_words_are_split_as_in_bert(text, words):
    """The words that the tokenizers library gave for the same text."""
    assert split_words(text) == words


def test_letters_and_accents_may_be_kept():
    assert split_words("Éa", lower=False, accents=True) == ["Éa"]
    assert split_words("Éa", lower=True, accents=True) == ["éa"]
    assert split_words("Éa", lower=False) == ["Ea"]


def test_learning_joins_what_is_most_frequent_first():
    text = ["low low low lower lower", "newest newest newest newest newest newest widest widest widest"]
    start = learn_pieces([], 2000)
    learnt = learn_pieces(text, len(start) + 3)[len(start) :]
    # es and then est occur 9 times; ne, ew and w-est 6 times each, of which ew comes first by its letters
    assert learnt == ["##es", "##est", "##ew"]
    assert learn_pieces(text) == [*start, *learnt, *learn_pieces(text)[len(start) + 3 :]]
    assert {"low", "lower", "newest", "widest"} <= set(learn_pieces(text))


def test_the_vocabulary_of_the_project_was_learnt_as_it_says(repository):
    source = repository.parent / "shared" / "data" / "librispeech-transcripts" / "utterances.txt"
    if not source.is_file():
        pytest.skip(f"no transcripts at {source}")
    lines = [line.partition(" ")[2] for line in source.read_text().splitlines()]
    # the first ones, which take less time: pieces are learnt one by one
    assert tuple(learn_pieces(lines, 250)) == english().pieces[:250]


def bert_json(model: dict | None = None, normalizer: dict | None = None) -> dict:
    usual = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {piece: place for place, piece in enumerate(TINY.pieces)},
    }
    bert = {"type": "BertNormalizer", "lowercase": True, "strip_accents": None}
    return {"model": usual | (model or {}), "normalizer": bert | (normalizer or {})}


def test_a_folder_gives_the_same_tokenizer_in_either_form(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(TINY.pieces) + "\n", encoding="utf-8")
    assert read_tokenizer(tmp_path) == TINY
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert read_tokenizer(tmp_path) == WordPiece(TINY.pieces, lower=False, accents=True)
    (tmp_path / "tokenizer.json").write_text(json.dumps(bert_json()))
    assert read_tokenizer(tmp_path) == TINY
    (tmp_path / "tokenizer.json").write_text(json.dumps(bert_json(normalizer={"strip_accents": False})))
    assert read_tokenizer(str(tmp_path)) == WordPiece(TINY.pieces, lower=True, accents=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "tokenizer.json is not JSON"),
        ("[]", "must hold an object, got list"),
        ("{}", "model must be an object, got NoneType"),
        (json.dumps(bert_json(model={"type": "BPE"})), "must be of type WordPiece, got 'BPE'"),
        (json.dumps(bert_json(model={"continuing_subword_prefix": "@@"})), "prefix must be '##', got '@@'"),
        (json.dumps(bert_json(model={"vocab": {"[PAD]": 0, "a": 2}})), "number its 2 pieces from 0 on"),
        (json.dumps(bert_json(model={"vocab": {"a": 0}})), r"lacks \['\[PAD\]'"),
        (json.dumps(bert_json(normalizer={"type": "NFC"})), "must be BertNormalizer, got 'NFC'"),
        (json.dumps(bert_json(normalizer={"lowercase": 1})), "lowercase must be true or false, got 1"),
        (json.dumps(bert_json(normalizer={"clean_text": False})), "clean_text must be true, got False"),
    ],
)
def test_another_kind_of_file_is_refused_with_its_reason(tmp_path, content, message):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_tokenizer(tmp_path)


def test_a_folder_without_a_vocabulary_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected tokenizer\.json or vocab\.txt"):
        read_tokenizer(tmp_path)
