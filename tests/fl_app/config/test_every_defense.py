"""What every defense of conf/defense promises in a federation that is audited."""

import logging

import pytest
import torch
from federations import SMALL
from shipped import defense_of, hides_nothing, shipped

from fl_app.adversary.passive import PassiveServer, Public, Sighting, observe
from fl_app.client_app import app
from fl_app.config.build import ServerParts, server_parts
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid

DEFENSES = shipped("defense")
# at 1 % of LeNet's features nothing is withheld that was not 0 anyway
STRONG = {"soteria": "defense.rate=0.8"}
AS_FEW_STEPS = {"secure_signs": "training.steps=1"}
"""Settings in which a defense differs from the baseline that its updates are compared with."""
ZERO = {
    "topk": "defense.share=1.0",
    "dgp": "defense.k1=0 defense.k2=0",
    "graddrop": "defense.rate=0",
    "prune": "defense.rate=0",
    "outpost": "defense.prune=0 defense.noise=0",
    "gaussian": "defense.std=0",
    "laplace": "defense.std=0",
    "soteria": "defense.rate=0",
    "fl_basic": "defense.share=1.0",
    "fl_top": "defense.share=1.0",
}
"""Settings under which a defense does nothing, for those that have such."""


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def audited(overrides: str) -> tuple[ServerParts, list[Sighting]]:
    text = f"{SMALL} {overrides}"
    parts = server_parts(text)
    auditor = PassiveServer(
        rounds="all",
        clients="all",
        model=lambda: (parts.strategy.weights, {}),
        read=parts.strategy.see,
        public=parts.public,
        batch_size=3,
        contrast=True,
    )
    grid = InlineGrid(
        app, parts.config["clients"], run_config={"overrides": text}, node_config={"allow-audit": True}
    )
    parts.strategy.start(
        grid=TappedGrid(grid, auditor),
        initial_arrays=hold({name: t.clone() for name, t in parts.model.state_dict().items()}),
        num_rounds=parts.config["rounds"],
    )
    assert not any(record.failures for record in parts.strategy.records)
    return parts, auditor.sightings


@pytest.mark.parametrize("defense", [name for name in DEFENSES if not hides_nothing(name)])
def test_what_travels_is_not_what_an_undefended_client_would_send(defense):
    parts, sightings = audited(f"rounds=1 clients=2 defense={defense} {STRONG.get(defense, '')}")
    for sighting in sightings:
        assert sighting.raw is not None
        if defense_of(defense).model is None:  # else there is no update of this model without the defense
            assert any(not torch.equal(sighting.update[name], raw) for name, raw in sighting.raw.items())
        public = Public(10, (3, 32, 32), (0.5,) * 3, (0.5,) * 3, parts.public.defense, True)
        observation = observe(sighting, parts.model, public, grant_labels=False)
        assert observation.defense == parts.public.defense
        assert all(torch.equal(mask, sighting.update[name] != 0) for name, mask in observation.sent.items())


@pytest.mark.parametrize("defense", [name for name in DEFENSES if defense_of(name).model is None])
def test_the_contrast_of_an_audit_is_the_update_of_an_undefended_client(defense):
    steps = AS_FEW_STEPS.get(defense, "")
    _, defended = audited(f"rounds=1 clients=2 defense={defense} {steps}")
    _, plain = audited(f"rounds=1 clients=2 defense={defense_of(defense).baseline} {steps}")
    for ours, theirs in zip(defended, plain, strict=True):
        assert torch.equal(ours.truth.inputs, theirs.truth.inputs)
        torch.testing.assert_close(ours.raw, theirs.update, rtol=0, atol=0)


@pytest.mark.parametrize("defense", ZERO)
def test_strength_zero_equals_no_defense_bit_for_bit(defense):
    _, defended = audited(f"rounds=2 clients=2 defense={defense} {ZERO[defense]}")
    _, plain = audited(f"rounds=2 clients=2 defense={defense_of(defense).baseline}")
    for ours, theirs in zip(defended, plain, strict=True):
        torch.testing.assert_close(ours.update, theirs.update, rtol=0, atol=0)


def test_what_was_trained_on_is_part_of_the_truth_if_it_is_another():
    _, transformed = audited("rounds=1 clients=2 defense=ats")
    for sighting in transformed:
        assert sighting.truth.trained.shape == sighting.truth.inputs.shape
        assert not torch.equal(sighting.truth.trained, sighting.truth.inputs)
    _, plain = audited("rounds=1 clients=2 defense=dgp")
    assert all(sighting.truth.trained is None for sighting in plain)


def test_of_a_vector_the_server_sees_few_entries_of_the_update():
    entries = 15_000  # of LeNet
    for defense in (name for name in DEFENSES if defense_of(name).confined):
        _, sightings = audited(f"rounds=1 clients=2 defense={defense}")
        for sighting in sightings:
            sent = sum(int((tensor != 0).sum()) for tensor in sighting.update.values())
            assert 0 < sent <= 0.005 * sum(tensor.numel() for tensor in sighting.update.values())
            assert sum(tensor.numel() for tensor in sighting.update.values()) > entries
