"""Clients vote on FL-TOP's coordinates: as any vector is sent, protected and charged, and in one round."""

import json
import logging

import pytest
import torch
from federations import SMALL, train

from fl_app.client_app import app
from fl_app.config.build import client_parts
from fl_app.config.compose import ConfigError
from fl_app.flower import InlineGrid
from fl_app.running.federation import run_federation
from fl_app.sketches import Votes, coordinate_count, flatten
from fl_app.wire import decode
from fl_app.wire.messages import VALUES, unpack_order, unpack_reply

TINY = "model=mlp model.hidden=[8] training.steps=2"
N = 3072 * 8 + 8 + 8 * 10 + 10
K = coordinate_count(0.01, N)
TOP = f"{TINY} defense=fl_top defense.share=0.01"
VOTE = f"{TOP} defense.chosen_by=vote rounds=3"


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def uploads(tap, round, size):
    """Return the vectors that clients sent in a round."""
    sent = [unpack_reply(reply) for order, reply in tap.exchanges if unpack_order(order).order.round == round]
    return [decode(reply.update, {VALUES: torch.zeros(size)})[VALUES] for reply in sent]


def test_a_vote_is_for_the_entries_that_changed_most_and_has_norm_one():
    votes = Votes(5, 2).take({"a": torch.tensor([0.1, -7.0]), "b": torch.tensor([[0.0, 3.0, -0.2]])})
    assert votes.tolist() == pytest.approx([0, 2**-0.5, 0, 2**-0.5, 0])
    assert float(votes.norm()) == pytest.approx(1)


def test_the_coordinates_are_those_with_the_most_votes_and_the_model_waits():
    parts, tap = train(f"{SMALL} {VOTE}")
    strategy, start = parts.strategy, flatten(dict(parts.model.named_parameters()))
    votes = torch.stack(uploads(tap, 1, N))
    assert votes.shape == (5, N)
    assert (votes.norm(dim=1) - 1).abs().max() < 1e-5
    count = (votes > 0).sum(dim=0)
    # stable: of as many votes, the lower index counts as more
    expected = count.argsort(descending=True, stable=True)[:K].sort().values
    assert torch.equal(strategy.coordinates, expected)
    assert strategy.voted_in == 1
    assert [len(vector) for vector in uploads(tap, 2, K)] == [K] * 5
    moved = torch.nonzero(flatten(strategy.weights) - start).flatten()
    assert set(moved.tolist()) <= set(expected.tolist())
    assert len(moved) > 0.5 * K


def test_votes_are_those_of_training_all_weights():
    _, tap = train(f"{SMALL} {VOTE}")
    _, whole = train(f"{SMALL} {TINY} defense=fl_std rounds=1")
    for vote, update in zip(uploads(tap, 1, N), uploads(whole, 1, N), strict=True):
        named = torch.nonzero(vote).flatten()
        assert len(named) == K
        others = torch.ones(N, dtype=torch.bool).index_fill(0, named, False)
        assert update[named].abs().min() >= update[others].abs().max()


def test_a_private_vote_is_noised_and_costs_a_round():
    private = "clients=5 fraction=1 dp=client dp.secure=false dp.epsilon=null dp.noise_multiplier=2"
    parts, tap = train(f"{SMALL} {VOTE} {private}")
    plain, _ = train(f"{SMALL} {TOP} {private} rounds=3")
    costs = [record.epsilon for record in parts.strategy.records]
    assert costs == pytest.approx([record.epsilon for record in plain.strategy.records])
    assert costs[0] > 0
    (first, *_) = [unpack_order(sent).plan for sent, _ in tap.exchanges]
    assert first.clip == 1.0
    assert parts.strategy.clip not in (0.0, 1.0)  # that of training was learnt on public samples afterwards
    noise = torch.stack(uploads(tap, 1, N)).sum(dim=0)
    # each of five sends a fifth of the variance of noise, twice the bound of 1; votes are few
    assert float(noise.median()) == pytest.approx(0, abs=0.1)
    assert float(noise.std()) == pytest.approx(2, rel=0.05)


def test_votes_are_added_up_under_masks_too():
    open_run, _ = train(f"{SMALL} {VOTE} training.steps=1")
    masked, _ = train(f"{SMALL} {VOTE} training.steps=1 secagg=on")
    assert torch.equal(masked.strategy.coordinates, open_run.strategy.coordinates)


def test_a_run_tells_who_chose_and_how_far_weights_went(tmp_path):
    for name, more in {"vote": VOTE, "std": f"{TINY} defense=fl_std audit.moved_most=0.01"}.items():
        text = f"{SMALL} {more} rounds=3 run_dir={tmp_path / name}"
        run_federation(InlineGrid(app, 5, run_config={"overrides": text}), text)
    vote, std = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("vote", "std"))
    assert vote["exchange"]["voted_in"] == 1
    assert vote["exchange"]["values"] == K
    for result in (vote, std):
        weights = result["weights"]
        assert weights["count"] == sum(weights["counts"]) == K
        assert len(weights["edges"]) == len(weights["counts"]) + 1
        assert weights["edges"][-1] == pytest.approx(weights["largest"])
        values = weights["values"]
        assert sum(values["counts"]) == K
        assert values["edges"][0] == -values["edges"][-1]
        assert values["norm"] <= values["edges"][-1] * K**0.5
    assert "clients voted on them" in (tmp_path / "vote" / "report.html").read_text()


def test_the_vote_itself_cannot_be_attacked():
    for rounds in ("[1]", "all", "[2,1]"):
        with pytest.raises(ConfigError, match="in round 1 clients vote on coordinates"):
            client_parts(f"{VOTE} attack=ig attack.rounds={rounds}")
    client_parts(f"{VOTE} attack=ig attack.rounds=[2]")


def test_refuses_another_chooser():
    with pytest.raises(ConfigError, match="chosen_by must be one of public, vote, got 'server'"):
        client_parts(f"{SMALL} {TOP} defense.chosen_by=server")
