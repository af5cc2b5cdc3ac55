"""An estimate of a run's duration from one gradient, told before a long run begins."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fl_app.adversary.passive import Chosen
from fl_app.config.build import ServerParts
from fl_app.console.progress import say_before
from fl_app.data.dataset import normalise, pixels
from fl_app.report.data.formats import format_seconds

LONG_SECONDS = 300.0
"""A shorter run is told nothing."""
_FEWEST_GRADIENTS = 200
"""Fewer than these are not worth a measurement."""
_COST_OF_A_STEP = 3.0
"""A step of a search against a gradient: forward, backward, and backward through both."""
_CASES = 3
"""Searches on one update: plain, adaptive, and before the defense."""


def tell_estimate(parts: ServerParts) -> None:
    """Print about how long this process will train its clients and search, if that is long.

    Images on a CPU alone are measured. Searches that share a graph take less.
    """
    config, device = parts.config, next(parts.model.parameters()).device
    train, search = _gradients(parts)
    if device.type != "cpu" or parts.dataset.vocabulary is not None or train + search < _FEWEST_GRADIENTS:
        return
    attacked = config["audit"]["batch_size"] or config["batch_size"]
    _seconds(parts, attacked)  # the first is slower than all others
    searching = search * _COST_OF_A_STEP * _seconds(parts, attacked) if search else 0.0
    training = train * _seconds(parts, config["batch_size"])
    if training + searching < LONG_SECONDS:
        return
    shares = [f"training {format_seconds(training)}"]
    shares += [f"attack {format_seconds(searching)}"] if searching else []
    say_before(
        f"{config['choices']['defense']}: this takes about {format_seconds(training + searching)} "
        f"({', '.join(shares)}); Ctrl-C saves it and says how to go on"
    )


def _gradients(parts: ServerParts) -> tuple[int, int]:
    """Return the number of gradients that the clients compute, and of steps that the attack takes."""
    config = parts.config
    rounds = config["rounds"] - parts.strategy.done
    clients = max(1, round(config["fraction"] * config["clients"]))
    train = rounds * clients * _local_steps(config, len(parts.dataset.train))
    if parts.attacker is None:
        return train, 0
    attack = config["attack"]
    updates = _count(attack["rounds"], rounds) * _count(attack["clients"], clients)
    return train, updates * _CASES * (attack.get("steps") or 0) * (attack.get("restarts") or 1)


def _count(chosen: Chosen, of: int) -> int:
    return of if isinstance(chosen, str) else len(chosen)


def _local_steps(config: Mapping[str, Any], samples: int) -> int:
    training = config["training"]
    if "epochs" not in training:
        return 1
    of_each = samples // config["clients"]
    return int(training["steps"] or training["epochs"] * -(-of_each // config["batch_size"]))


def _seconds(parts: ServerParts, batch: int) -> float:
    """Measure a gradient of ``batch`` training images; the model and its random numbers stay as they were."""
    data, model = parts.dataset, copy.deepcopy(parts.model).eval()
    weights = [p for p in model.parameters() if p.requires_grad]
    inputs = normalise(pixels(data.train.inputs[:batch], weights[0].device), data.mean, data.std)
    with torch.random.fork_rng(devices=[]):
        start = time.perf_counter()
        loss = nn.functional.log_softmax(model(inputs.to(weights[0].dtype)), 1).mean()
        torch.autograd.grad(loss, weights, allow_unused=True)
        return time.perf_counter() - start
