"""The word error rate, against every way to edit one text into another."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.text.word_errors import count_edits, word_error_rate

texts = st.lists(st.sampled_from("abc"), max_size=6)


def try_all(reference: tuple[str, ...], heard: tuple[str, ...]) -> int:
    """Try every edit at the front of both."""

    @cache
    def edits(i: int, j: int) -> int:
        if i == len(reference):
            return len(heard) - j
        if j == len(heard):
            return len(reference) - i
        replaced = edits(i + 1, j + 1) + int(reference[i] != heard[j])
        return min(replaced, 1 + edits(i + 1, j), 1 + edits(i, j + 1))

    return edits(0, 0)


@given(texts, texts)
@settings(deadline=None)
def test_no_other_way_takes_fewer_edits(reference, heard):
    assert count_edits(reference, heard) == try_all(tuple(reference), tuple(heard))


@pytest.mark.parametrize(
    ("reference", "heard", "edits"),
    [
        ("one must eat", "one must eat", 0),
        ("one must eat", "", 3),
        ("one must eat", "must eat", 1),
        ("one must eat", "one mist eat", 1),
        ("one must eat", "oh one must eat it", 2),
        ("a b c d", "b c d a", 2),
    ],
)
def test_hand_worked(reference, heard, edits):
    assert count_edits(reference.split(), heard.split()) == edits
    assert word_error_rate([reference], [heard]) == edits / len(reference.split())


def test_long_texts_count_more_and_the_rate_may_exceed_one():
    # 1 edit of 1 word and 0 of 3
    assert word_error_rate(["yes", "one must eat"], ["no", "one must eat"]) == 0.25
    assert word_error_rate(["yes"], ["no no no"]) == 3.0


def test_refuses_what_cannot_be_compared():
    with pytest.raises(ValueError, match="2 references, but 1 transcripts"):
        word_error_rate(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="at least one word, got none"):
        word_error_rate(["", " "], ["a", "b"])
