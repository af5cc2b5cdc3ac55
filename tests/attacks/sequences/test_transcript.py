import dataclasses

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks.sequences import transcript
from attacks.sequences.transcript import _objective, halving, label_penalty
from fl_app.types import Observation

TOKENS, START = 40, 1
SAID = [7, 30, 12, 2]


def true_variables(said, pieces):
    places = torch.searchsorted(pieces, torch.tensor(said.tokens))
    return {"contexts": said.contexts, "labels": F.one_hot(places, len(pieces)).double()[None]}


@pytest.mark.parametrize("tokens", [SAID, [5, 5, 9, 2], [2]])
@pytest.mark.parametrize("everything", [False, True])
def test_the_truth_has_an_objective_of_zero_and_another_order_has_not(say, tokens, everything):
    said = say(tokens, cut=True)
    pieces = torch.arange(TOKENS) if everything else torch.tensor(sorted(set(tokens)))
    objective, true = _objective(said.obs, pieces, START, 1.0), true_variables(said, pieces)
    assert objective(true).item() < 1e-9
    if len(set(tokens)) > 1:
        turned = {**true, "labels": true["labels"].flip(1)}
        assert objective(turned).item() > 0.1


def test_what_flows_back_through_the_attention_is_all_that_the_truth_misses(say):
    pieces = torch.tensor(sorted(SAID))
    said = say(SAID)
    gates = [name for name in said.obs.update if name.startswith("decoder.gates")]
    for left_out, least, most in (([], 1e-4, 0.1), (gates, 0.0, 1e-9)):
        update = {name: value for name, value in said.obs.update.items() if name not in left_out}
        obs = dataclasses.replace(said.obs, update=update)
        assert least <= _objective(obs, pieces, START, 1.0)(true_variables(said, pieces)).item() < most


def test_of_a_pruned_update_only_what_was_sent_is_matched(say):
    said = say(SAID, cut=True)
    sent = {name: torch.rand(value.shape) < 0.5 for name, value in said.obs.update.items()}
    pruned = {name: value * sent[name] for name, value in said.obs.update.items()}
    pieces = torch.tensor(sorted(SAID))
    for masks in (sent, None):
        obs = dataclasses.replace(said.obs, update=pruned, sent=masks)
        assert _objective(obs, pieces, START, 1.0)(true_variables(said, pieces)).item() < 1e-9


def test_one_local_step_is_matched_as_its_gradient(say):
    said = say(SAID, cut=True)
    delta = {name: -0.3 * value for name, value in said.obs.update.items()}
    obs = dataclasses.replace(said.obs, update=delta, lr=0.3, local_steps=1)
    pieces = torch.tensor(sorted(SAID))
    assert _objective(obs, pieces, START, 1.0)(true_variables(said, pieces)).item() < 1e-9


def test_the_penalty_is_what_the_labels_miss_a_sum_of_one_by():
    labels = torch.tensor([[[0.5, 0.25], [1.0, 1.0]], [[0.5, 0.5], [0.0, 1.0]]])
    torch.testing.assert_close(label_penalty(labels), torch.tensor([1.25, 0.0]))


def test_the_rate_is_halved_down_to_a_tenth():
    schedule = halving(0.05, 20_000)
    steps = (0, 3_999, 4_000, 7_999, 8_000, 12_000, 16_000, 19_999)
    rates = [0.05, 0.05, 0.025, 0.025, 0.0125, 0.00625, 0.005, 0.005]
    assert [schedule(step / 20_000) for step in steps] == pytest.approx(rates)


@pytest.mark.parametrize("tokens", [SAID, [20, 5, 5, 2]])
def test_the_tokens_are_found_in_their_order(say, tokens):
    found = transcript(steps=250, restarts=2, patience=80)(say(tokens).obs)
    assert list(found.tokens) == tokens
    assert found.objective < 0.5
    assert any("restarts end in this transcript" in note for note in found.notes)


def test_a_search_whose_tokens_stay_is_over_early(say):
    seen = []
    attack = transcript(steps=400, restarts=1, patience=5)
    found = attack(say(SAID).obs, on_step=lambda done, steps, best: seen.append(done))
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) < 400
    assert f"unchanged for a while after {len(seen)} steps" in found.notes


def test_without_the_bag_the_whole_vocabulary_is_searched(say):
    found = transcript(bag=False, steps=3, restarts=1)(say(SAID).obs)
    assert len(found.tokens) == len(SAID)
    assert f"{len(SAID)} tokens of {TOKENS} pieces sought" in found.notes


def test_the_same_seed_gives_the_same_result_and_the_observation_stays(say):
    said = say(SAID)
    before = {name: value.clone() for name, value in said.obs.update.items()}
    first, second = (transcript(steps=5, restarts=2, seed=4)(said.obs) for _ in range(2))
    assert (first.tokens, first.objective) == (second.tokens, second.objective)
    torch.testing.assert_close(said.obs.update, before)


def test_a_transcript_is_as_long_as_the_attacker_was_told(say):
    obs = dataclasses.replace(say(SAID).obs, length=len(SAID) - 1)
    assert len(transcript(steps=1, restarts=1)(obs).tokens) == len(SAID) - 1
    assert len(transcript(steps=1, restarts=1, rank=2)(obs).tokens) == 2


def test_failed_premises_are_noted(say, train):
    notes = transcript(steps=1, restarts=1)(train([[[3, 2], [9, 2]], [[4, 2], [8, 2]]])).notes
    assert "premise failed: 4 utterances are matched as one" in notes
    assert "premise failed: 2 local steps are matched as one" in notes


def test_an_update_of_zeros_gives_no_transcript(say):
    obs = say(SAID).obs
    nothing = {name: torch.zeros_like(value) for name, value in obs.update.items()}
    found = transcript()(dataclasses.replace(obs, update=nothing))
    assert list(found.tokens) == []
    assert any("rank 0" in note for note in found.notes)


@pytest.mark.parametrize(
    "settings", [{"steps": 0}, {"restarts": 0}, {"patience": 0}, {"lr": 0.0}, {"penalty": -1.0}]
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ValueError, match=f"transcript: .*{next(iter(settings))}"):
        transcript(**settings)


def test_what_it_cannot_attack_is_refused(say):
    obs = say(SAID).obs
    with pytest.raises(ValueError, match=r"decoder\.embedding\.weight, got a Linear"):
        transcript()(Observation(nn.Linear(2, 3), {"weight": torch.ones(3, 2)}))
    with pytest.raises(ValueError, match="start must be one of 40 tokens, got 40"):
        transcript(start=40)(obs)
    with pytest.raises(ValueError, match="needs lr"):
        transcript()(dataclasses.replace(obs, local_steps=2))
