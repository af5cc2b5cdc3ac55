"""Handwritten digits: a CNN with your own DataLoader, and updates pruned by DGP before they leave."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fl_app.client
from fl_app.strategies import FedSGD
from fl_app.transforms import error_feedback, prune_dual


def net() -> nn.Module:
    """Build the network that server and clients share."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )


@functools.cache
def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return all images in [0, 1] and their labels."""
    digits = load_digits()
    return torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)


def train(model: nn.Module, context: Context, config: dict) -> tuple[int, dict[str, float]]:
    """Take a pass over this node's images; every sixth image is for tests."""
    x, y = images()
    own = torch.arange(len(x)) % 6 == int(context.node_config["partition-id"]) % 5
    loader = DataLoader(TensorDataset(x[own], y[own]), batch_size=32, shuffle=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    total = 0.0
    for inputs, labels in loader:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimiser.step()
        total += loss.item() * len(labels)
    return int(own.sum()), {"train_loss": total / int(own.sum())}


client = fl_app.client.app(net, train, defense=error_feedback(prune_dual(k1=0.05, k2=0.5)))
server = ServerApp()


def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the accuracy on images that no client has."""
    x, y = images()
    held_out = torch.arange(len(x)) % 6 == 5
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": (model(x[held_out]).argmax(1) == y[held_out]).float().mean().item()})


def federate(grid: Grid, config: dict) -> Result:
    """Train with the nodes that are there."""
    torch.manual_seed(0)
    strategy = FedSGD(net(), lr=config["lr"])
    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(net().state_dict()),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=measure,
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    federate(grid, context.run_config)
