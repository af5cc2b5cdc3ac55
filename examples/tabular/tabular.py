"""Rows of patients: FL-TOP sends few numbers, under secure aggregation, so that no update is seen alone."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn

import fl_app.client
from fl_app.client import SecureSettings
from fl_app.defenses import fl_top
from fl_app.strategies import FLTop, SecureAggregation

SHARE = 0.1
"""Share of the weights that is trained and sent."""


def net() -> nn.Module:
    """Build the network that server and clients share."""
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))


def rows(part: int, parts: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one of several parts of the patients; part 6 is public, part 7 for tests."""
    data = load_breast_cancer()
    x = torch.tensor(StandardScaler().fit_transform(data.data), dtype=torch.float32)
    return x[part::parts], torch.tensor(data.target)[part::parts]


def train(model: nn.Module, context: Context, config: dict) -> tuple[int, dict[str, float]]:
    """Take some steps of Adam on this node's patients."""
    x, y = rows(int(context.node_config["partition-id"]) % 6)
    optimiser = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return len(x), {}


client = fl_app.client.app(net, train, defense=fl_top(share=SHARE), secagg=SecureSettings(min_clients=3))
server = ServerApp()


def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the accuracy on patients that no client has."""
    x, y = rows(7)
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": (model(x).argmax(1) == y).float().mean().item()})


def federate(grid: Grid, config: dict) -> Result:
    """Train with the nodes that are there."""
    torch.manual_seed(0)
    strategy = FLTop(
        net(),
        lr=config["lr"],
        share=SHARE,
        public=rows(6),
        public_lr=0.1,
        min_available_nodes=3,
        aggregation=SecureAggregation(min_clients=3),
    )
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
