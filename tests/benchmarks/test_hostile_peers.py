"""Hostile clients of every kind: the others' model, the round's time and the server's memory stay."""

import logging

import pytest

from benchmarks.hostile_peers import PEERS, ROUNDS, Peer, quiet, run, same_model, undisturbed

MOST_SECONDS = 20.0
"""Processor time beyond that of the undisturbed run: a bound against endless work, loose on any machine."""
MOST_GROWTH = 256 << 20


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.mark.parametrize("kind", PEERS)
def test_a_hostile_client_costs_the_others_nothing(kind):
    peer = PEERS[kind]
    plain = undisturbed(peer.overrides, peer.kinds)
    disturbed = run(peer)
    assert same_model(plain, disturbed)
    assert disturbed.seconds < plain.seconds + MOST_SECONDS
    assert disturbed.grown < MOST_GROWTH
    for reason in disturbed.failures:
        assert len(reason) <= 500
        assert reason.isprintable()


def test_the_comparison_tells_models_apart():
    """A client that answers moves the model: were it always the same, the tests above could not fail."""
    honest = run(Peer(quiet, ()))
    assert len(honest.failures) == 0
    assert not same_model(honest, undisturbed("defense=none", ("train",)))
    assert len(undisturbed("defense=none", ("train",)).failures) == ROUNDS
