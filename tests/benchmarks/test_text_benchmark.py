"""The benchmark of text: what its sentences are masked to, and how its table counts."""

import torch

from attacks.base import Transcript
from benchmarks.text import LENGTH, SENTENCES, Leak, _accuracy, _table, masked
from fl_app.text import english


def test_sentences_are_of_the_papers_length_and_known_words():
    for text in SENTENCES:
        tokens = english().encode_sentence(text)
        assert 20 <= len(tokens) <= min(25, LENGTH)
        assert english().sign("[UNK]") not in tokens


def test_a_masked_sentence_asks_for_what_it_hides():
    for seed in range(3):
        truth = masked(SENTENCES[0], seed)
        hidden = truth.labels >= 0
        assert torch.where(hidden, truth.labels, truth.inputs)[0].tolist() == english().encode_sentence(
            SENTENCES[0]
        )
        assert set(truth.inputs[hidden].tolist()) == {english().sign("[MASK]")}
        assert hidden.sum() == round(0.15 * (truth.inputs.shape[1] - 2))
        assert not hidden[0, 0]
        assert not hidden[0, -1]


def test_tokens_that_were_granted_do_not_count():
    truth = masked(SENTENCES[1], 0)
    granted = torch.where(truth.labels >= 0, truth.labels, 0)[0].tolist()
    hidden = truth.labels[0] >= 0
    assert _accuracy(granted, truth, ~hidden) == 0.0
    assert _accuracy(granted, truth, hidden) == 1.0


def test_the_table_shows_the_mean_and_the_worst():
    runs = [
        Leak(Transcript([]), [0.0, 0.25, 0.5, 1.0, 1.0, 1.0, right], wer, 3.0)
        for wer, right in ((0.0, 1.0), (0.5, 0.5))
    ]
    lines = _table("BERT", [runs]).splitlines()
    assert lines[0] == "| BERT | Example 1 |"
    assert lines[4] == "| Iters = 5 | 0.500 (0.500) |"
    assert lines[8] == "| End | 0.750 (0.500) |"
    assert lines[9] == "| WER | 0.250 (0.500) |"
