"""Attacks on labels see what passed by of clients with more samples than there are classes."""

import logging

import pytest
from federations import SMALL

from attacks.labels import bias_labels, idlg_label, rlg, yin_labels
from fl_app.adversary.passive import PassiveServer, Public, observe
from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.types import Observation, Truth

SAMPLES = 24
STEPS = {
    "one step": "strategy=fed_sgd",
    "K steps": "strategy=fed_avg batch_size=1",
    "N x K": "strategy=fed_avg batch_size=8",
}


def seen(overrides: str) -> tuple[Observation, Truth]:
    text = f"{SMALL} clients=1 rounds=1 data.size=16 defense=none {overrides}"
    parts = server_parts(text)
    grid = InlineGrid(app, 1, run_config={"overrides": text}, node_config={"allow-audit": True})
    strategy, d = parts.strategy, parts.dataset
    auditor = PassiveServer(
        rounds=(1,),
        clients=(0,),
        model=lambda: (strategy.weights, strategy.buffers),
        read=strategy.see,
        public=parts.public,
        batch_size=SAMPLES,
    )
    strategy.start(
        grid=TappedGrid(grid, auditor), initial_arrays=hold(parts.model.state_dict()), num_rounds=1
    )
    (sighting,) = auditor.sightings
    public = Public(d.num_classes, d.in_shape, d.mean, d.std, parts.public.defense, True)
    return observe(sighting, parts.model, public, grant_labels=False), sighting.truth


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("model", ["lenet", "resnet18"])
def test_more_samples_than_classes_are_answered_and_the_premise_reported(model, steps):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    obs, truth = seen(f"model={model} {STEPS[steps]}")
    assert (obs.batch_size, obs.num_classes) == (SAMPLES, 10)
    assert obs.local_steps == {"one step": None, "K steps": 24, "N x K": 3}[steps]
    labels = set(truth.labels.tolist())
    found = {attack: attack()(obs) for attack in (rlg, yin_labels, idlg_label, bias_labels)}
    for answer in found.values():
        named = answer.labels.tolist()
        assert 0 < len(named) == len(set(named)) <= 10
        assert answer.notes
    assert any("premise failed" in note for note in found[rlg].notes)
    assert set(found[bias_labels].labels.tolist()) <= labels
    assert len(found[idlg_label].labels) == 1
