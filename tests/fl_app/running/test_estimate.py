"""The estimate before a long run: of the right size, and without a trace in the run."""

from __future__ import annotations

import re
import time

import pytest
import torch
from federations import SMALL

from fl_app.config.build import server_parts
from fl_app.running import estimate

IMAGES = SMALL.replace("attack=none ", "")


def told(capsys, monkeypatch, *overrides, long=0.0):
    monkeypatch.setattr(estimate, "LONG_SECONDS", long)
    estimate.tell_estimate(server_parts(" ".join([IMAGES, *overrides])))
    return capsys.readouterr().err


def test_training_and_attack_are_counted_in_gradients(monkeypatch):
    parts = server_parts(
        f"{IMAGES} rounds=7 clients=4 fraction=0.5 attack.steps=10 attack.clients=[0,1,2] attack.rounds=[1,2]"
    )
    train, search = estimate._gradients(parts)
    assert (train, search) == (7 * 2, 2 * 3 * 3 * 10)
    parts = server_parts(f"{IMAGES} rounds=5 clients=4 strategy=fed_avg training.steps=6 attack=none")
    assert estimate._gradients(parts) == (5 * 4 * 6, 0)


def test_a_long_run_is_told_its_duration_and_a_short_one_nothing(capsys, monkeypatch):
    line = told(capsys, monkeypatch, "rounds=1000", "attack.steps=1000")
    assert len(line.splitlines()) == 1
    assert len(re.findall(r"\d+(?:\.\d+)? (?:s|min|h)\b", line)) >= 3
    assert told(capsys, monkeypatch, "rounds=1000", "attack.steps=1000", long=1e9) == ""
    assert told(capsys, monkeypatch, "rounds=1", "attack.steps=1") == ""


@pytest.mark.parametrize("model", ["lenet", "resnet18"])
def test_a_measured_gradient_is_about_as_long_as_one(model):
    parts = server_parts(f"{IMAGES} model={model} attack=none")
    batch = parts.dataset.train.inputs[:8].float()
    estimate._seconds(parts, 8)
    measured = min(estimate._seconds(parts, 8) for _ in range(3))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        loss = parts.model(batch).sum()
        torch.autograd.grad(loss, [p for p in parts.model.parameters() if p.requires_grad])
        seconds.append(time.perf_counter() - start)
    assert 0.1 < measured / min(seconds) < 10


def test_the_measurement_leaves_model_and_random_numbers_as_they_were():
    parts = server_parts(f"{IMAGES} model=resnet18 defense=precode attack=none")
    before = {name: tensor.clone() for name, tensor in parts.model.state_dict().items()}
    mode, state = parts.model.training, torch.get_rng_state()
    estimate._seconds(parts, 2)
    assert all(torch.equal(before[name], tensor) for name, tensor in parts.model.state_dict().items())
    assert parts.model.training == mode
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in parts.model.parameters())
