"""Deep leakage of text: a small model gives its sentence away, and every grant and clue is named."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import attacks.sequences
from attacks.base import Transcript
from attacks.score import score
from attacks.text import embedding_rows, text_dlg
from attacks.text.clues import find_targets, sentence_length
from attacks.text.even_distance import even_distance
from attacks.text.recorded import Recorded
from fl_app.models import bert_mlm, mlp
from fl_app.transforms import identity, keep_topk, take_sign
from fl_app.types import Observation, Truth

VOCABULARY, LENGTH, MASK = 40, 7, 4
ASKED = torch.tensor([[-2, 9, -2, -2, -2, 21, -2]])
INPUTS = torch.tensor([[12, MASK, 30, 12, 5, MASK, 33]])
TRUTH = Truth(INPUTS, ASKED)


def observe(*, tied: bool = False, seed: int = 0, **known) -> Observation:
    torch.manual_seed(seed)
    model = bert_mlm(VOCABULARY, (12,), layers=1, width=16, heads=2, inner=32, tied=tied)
    loss = F.cross_entropy(model(INPUTS)[0], ASKED[0], ignore_index=-2)
    names, parameters = zip(*model.named_parameters(), strict=True)
    update = dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))
    return Observation(model, update, training=True, **known)


def accuracy(tokens) -> float:
    return score(Transcript(tokens), TRUTH)["tokens"]["accuracy"]


@pytest.mark.parametrize("tied", [False, True])
def test_finds_every_token_with_nothing_granted(tied):
    result = text_dlg(steps=12, history=(0, 2, 99))(observe(tied=tied))
    assert accuracy(result.tokens) == 1.0
    assert list(result.history) == [0, 2]
    assert accuracy(result.history[0]) < 0.5 <= accuracy(result.history[2])
    notes = " | ".join(result.notes)
    assert "length 7 read off the position embeddings" in notes
    assert "2 targets read off the output bias" in notes
    assert "the table of token embeddings is not matched" in notes
    assert result.text is None


def test_finds_every_token_with_masks_and_targets_granted():
    spell = " ".join
    attack = text_dlg(steps=12, targets="granted", spell=lambda tokens: spell(map(str, tokens)))
    result = attack(observe(labels=F.pad(ASKED, (0, 3), value=-1), input_shape=(12,)))
    assert accuracy(result.tokens) == 1.0
    assert result.text == "12 9 30 12 5 21 33"
    assert {"masked places and targets granted", "length 7 granted with the labels"} <= set(result.notes)


def test_granted_targets_stand_in_the_result_from_the_start():
    result = text_dlg(steps=1)(observe(labels=ASKED))
    assert [result.history[0][place] for place in (1, 5)] == [9, 21]


def test_the_plain_distance_hardly_sees_what_is_not_masked():
    plain = text_dlg(steps=6, targets="granted", even=False, tolerance=0.0)(observe(labels=ASKED))
    assert 2 / 7 <= accuracy(plain.tokens) < 0.8


def test_embedding_rows_narrow_the_words():
    result = text_dlg(steps=1, use_embedding_rows=True, history=(0,))(observe())
    # what is read at the very start: noise, but of tokens that occur, or of targets
    assert set(result.history[0]) <= {*INPUTS[0].tolist(), 9, 21}
    assert any("tell tokens of the text" in note for note in result.notes)
    blind = observe()
    del blind.update["tokens.weight"]
    notes = text_dlg(steps=1, use_embedding_rows=True)(blind).notes
    assert "no row of the embeddings stands out: words out of all tokens" in notes


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_embedding_rows_are_the_tokens_that_occur(tied, seed):
    result = embedding_rows()(observe(tied=tied, seed=seed))
    assert sorted(result.labels.tolist()) == sorted(set(INPUTS[0].tolist()))
    assert result.labels[0] == MASK  # the largest gradient is where something is asked for
    assert any("of rank 2" in note for note in result.notes) == tied


@pytest.mark.parametrize("tied", [False, True])
def test_how_large_a_gradient_is_does_not_matter_to_its_rows(tied):
    obs = observe(tied=tied)
    small = replace(obs, update={name: 1e-6 * entries for name, entries in obs.update.items()})
    assert embedding_rows()(small).labels.tolist() == embedding_rows()(obs).labels.tolist()


def test_rows_that_all_have_a_gradient_of_their_own_tell_nothing():
    noisy = observe()
    noisy.update["tokens.weight"] += torch.randn(VOCABULARY, 16)
    result = embedding_rows()(noisy)
    assert len(result.labels) == 0
    assert "have a gradient of their own" in result.notes[0]


def test_embedding_rows_that_were_not_sent_tell_nothing():
    obs = observe()
    del obs.update["tokens.weight"]
    result = embedding_rows()(obs)
    assert len(result.labels) == 0
    assert "was not sent" in result.notes[0]


def test_clues_name_the_targets_and_where_masks_are_likely():
    targets = find_targets(observe(), LENGTH, "infer", who="test")
    assert targets.pieces.tolist() == [9, 21]
    chances = targets.chances
    assert chances[ASKED[0] >= 0].min() > 10 * chances[ASKED[0] < 0].max()
    every = find_targets(observe(), LENGTH, "optimise", who="test")
    assert len(every.pieces) == VOCABULARY
    assert every.known.shape == (LENGTH, VOCABULARY + 1)


def test_clues_that_are_missing_are_named():
    obs = observe()
    del obs.update["output.bias"], obs.update["positions.weight"]
    targets = find_targets(obs, LENGTH, "infer", who="test")
    assert len(targets.pieces) == VOCABULARY
    assert "'output.bias'] is not there" in targets.note
    assert targets.chances.unique().tolist() == [0.15]
    with pytest.raises(ValueError, match="tells the length: labels must be granted"):
        sentence_length(obs, "test")


def test_one_local_step_is_read_as_its_gradient():
    obs, attack = observe(), text_dlg(steps=1)
    delta = {name: -0.5 * entries for name, entries in obs.update.items()}
    moved = attack(replace(obs, update=delta, lr=0.5, local_steps=1, local_batch_size=1))
    plain = attack(obs)
    assert moved.tokens == plain.tokens
    assert moved.objective == pytest.approx(plain.objective, rel=1e-3)


def pruned(share: float, **known) -> Observation:
    """Return the observation with the largest ``share`` of every tensor alone, and its defense."""
    obs, keep = observe(**known), keep_topk(share)
    update, _ = keep.apply(obs.update, keep.init(obs.update), None)
    sent = {name: entries != 0 for name, entries in update.items()}
    return replace(obs, update=update, sent=sent, defense=keep.traces)


def test_who_knows_of_pruning_matches_what_was_sent():
    obs = pruned(0.4, labels=ASKED)
    plain, informed = text_dlg(steps=12)(obs), text_dlg(steps=12, adaptive=True)(obs)
    assert accuracy(informed.tokens) == 1.0 > accuracy(plain.tokens)
    assert any(note.startswith("premise failed: 60.") for note in plain.notes)
    notes = " | ".join(informed.notes)
    assert "adaptive: only what was sent is matched" in notes
    assert "premise failed" not in notes
    # 5 of 40 rows have a gradient: two fifths of the table have room for all of them
    assert "5 of 40 rows of tokens.weight tell tokens of the text" in notes
    none = text_dlg(steps=1, adaptive=True)(pruned(0.1, labels=ASKED))
    assert not any("rows of tokens.weight" in note for note in none.notes)


def test_without_a_defense_both_forms_find_the_same():
    obs = replace(observe(labels=ASKED), defense=identity().traces)
    plain, informed = text_dlg(steps=2)(obs), text_dlg(steps=2, adaptive=True)(obs)
    assert plain.tokens == informed.tokens
    assert plain.notes == informed.notes


def test_signs_are_compared_as_signs():
    obs = observe(labels=ASKED)
    signs = {name: entries.sign() * entries.abs().mean() for name, entries in obs.update.items()}
    known = replace(obs, update=signs, defense=take_sign().traces)
    result = text_dlg(steps=1, adaptive=True)(known)
    assert "adaptive: the guess is compared by little more than its signs" in result.notes


def test_the_attacks_on_sequences_have_this_one_too():
    assert attacks.sequences.text_dlg is text_dlg


def test_even_distance_measures_each_part_in_its_own_size():
    target = torch.tensor([[3.0, 4.0, 0.5, 1e-9]])
    distance = even_distance([2, 1, 1], [1.0, 0.25, 7.0])(target, None)
    # all of the first part is missing, then half of the second; the third is rounding
    assert distance(torch.tensor([[0.0, 0.0, 0.5, 5.0]])).item() == pytest.approx(1.0)
    assert distance(torch.tensor([[3.0, 4.0, 0.25, 5.0]])).item() == pytest.approx(0.25 * 0.25)
    masked = even_distance([2, 1, 1], [1.0, 0.25, 7.0])(target, torch.tensor([[1.0, 0.0, 1.0, 1.0]]))
    assert masked(torch.tensor([[0.0, 9.0, 0.5, 0.0]])).item() == pytest.approx(1.0)


def test_an_optimiser_that_records_steps_as_the_other_does():
    class Halving:
        def step(self, variables, evaluate, lr):
            return {name: value / 2 for name, value in variables.items()}

    recorded, variables = Recorded(Halving(), (0, 2, 9)), {"x": torch.tensor([8.0])}
    for _ in range(4):
        variables = recorded.step(variables, None, 1.0)
    assert variables["x"].item() == 0.5
    assert {step: seen["x"].item() for step, seen in recorded.seen.items()} == {0: 8.0, 2: 2.0}


@pytest.mark.parametrize(
    ("settings", "known", "message"),
    [
        ({}, {"batch_size": 2}, "one sentence at a time, got a batch of 2"),
        ({"targets": "granted"}, {}, r"needs labels \(1, L\), which are not granted"),
        ({}, {"labels": torch.full((1, 13), -2)}, "labels must be of 1 to 12 tokens, got 13"),
        ({}, {"labels": ASKED[0]}, r"labels must be \(1, L\), got \(7,\)"),
        ({}, {"labels": torch.full((1, 7), -2)}, "got none that is asked for"),
    ],
)
def test_grants_that_do_not_fit_are_refused(settings, known, message):
    with pytest.raises(ValueError, match=message):
        text_dlg(steps=1, **settings)(observe(**known))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": "guess"}, "targets must be one of"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"tolerance": 1.0}, r"tolerance must be in \[0, 1\), got 1.0"),
        ({"time_budget": 0.0}, "time_budget must be positive seconds or None, got 0.0"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        text_dlg(**settings)


def test_a_model_of_images_is_refused():
    model: nn.Module = mlp(3, (1, 4, 4))
    with pytest.raises(ValueError, match="expected a language model such as bert_mlm; Sequential has no"):
        text_dlg()(Observation(model, {}))
