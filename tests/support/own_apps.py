"""A small app of somebody else: a network, rows of data and a training loop, for the library's clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Context
from torch import Tensor, nn
from torch.nn import functional as F

CLIENTS = 4


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def started(seed: int = 0) -> nn.Module:
    """Return a network with known weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return net()


def rows(client: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(10 + 4 * client, 6, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def client_of(context: Context) -> int:
    return int(context.node_config["partition-id"])


def train(model: nn.Module, context: Context, config: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """Take a pass of SGD in batches of 5."""
    x, y = rows(client_of(context))
    optimiser = torch.optim.SGD(model.parameters(), lr=float(config["lr"]), momentum=0.5)
    loss = torch.zeros(())
    for inputs, labels in zip(x.split(5), y.split(5), strict=True):
        optimiser.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimiser.step()
    return len(x), {"train_loss": loss.item()}


def differentiate(
    model: nn.Module, context: Context, config: Mapping[str, Any]
) -> tuple[int, dict[str, float]]:
    """Leave the gradient of all rows, and take no step."""
    x, y = rows(client_of(context))
    F.cross_entropy(model(x), y).backward()
    return len(x), {}


def evaluate(model: nn.Module, context: Context, config: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    x, y = rows(client_of(context))
    with torch.no_grad():
        return len(x), {"accuracy": (model(x).argmax(1) == y).float().mean().item()}
