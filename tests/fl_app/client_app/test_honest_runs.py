"""Runs that keep to the default policy: nodes that do not trust them take part, and train the same model."""

import logging

import pytest
import torch
from federations import SMALL, train
from hostile_server import DEPLOYED

from fl_app.client_app import app
from fl_app.config.conf_files import CONF_DIR
from fl_app.flower import InlineGrid
from fl_app.wire.messages import unpack_reply

ROOMY = "batch_size=8 clients=3 data.size=12 rounds=3 model=mlp model.hidden=[8]"
REPEATING = [
    "none",
    "topk",
    "dgp",
    "adgp defense.location=vote",
    "graddrop",
    "fp16",
    "fl_std",
    "fl_top defense.share=0.1",
]
"""Defenses without noise: a node that draws its own numbers computes the same."""
SKIPPED = {"soteria", "ats", "custom"}
"""Those that take pictures and long, and the one that names no callable."""


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def untrusting(overrides: str, nodes: int = 3, **config):
    grid = InlineGrid(
        app, nodes, run_config={"overrides": f"{SMALL} {overrides}"}, node_config={**DEPLOYED, **config}
    )
    return train(overrides, grid=grid)


@pytest.mark.parametrize("defense", REPEATING)
@pytest.mark.parametrize("folder", [True, False])
def test_a_run_within_the_default_policy_trains_the_same_model_as_in_a_simulation(defense, folder, tmp_path):
    text = f"{ROOMY} defense={defense}"
    config = {"state-dir": str(tmp_path)} if folder else {}
    guarded, tap = untrusting(text, **config)
    assert not [failure for record in guarded.strategy.records for failure in record.failures]
    trusted, _ = train(text)
    for name, tensor in trusted.strategy.weights.items():
        assert torch.equal(tensor, guarded.strategy.weights[name]), name
    assert not any(unpack_reply(reply).metrics for _, reply in tap.exchanges)


@pytest.mark.parametrize("strategy", ["fed_avg", "fed_avg fraction=0.5"])
def test_local_epochs_and_partial_cohorts_stay_within_the_default_policy(strategy):
    guarded, _ = untrusting(f"{ROOMY} defense=none strategy={strategy} training.epochs=2 rounds=5")
    assert not [failure for record in guarded.strategy.records for failure in record.failures]


@pytest.mark.parametrize(
    "defense", sorted({path.stem for path in (CONF_DIR / "defense").glob("*.yaml")} - SKIPPED)
)
def test_every_defense_is_within_the_default_policy(defense):
    guarded, _ = untrusting(f"{ROOMY} defense={defense} rounds=2")
    assert not [failure for record in guarded.strategy.records for failure in record.failures]


@pytest.mark.parametrize("secagg", ["off", "on"])
def test_client_level_privacy_is_within_the_default_policy(secagg):
    private = f"defense=fl_std dp=client secagg={secagg} training.steps=2 rounds=2 clients=5"
    guarded, _ = untrusting(f"{ROOMY} {private}", nodes=5)
    assert not [failure for record in guarded.strategy.records for failure in record.failures]
