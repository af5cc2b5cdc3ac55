"""Sentences: an embedding and a GRU, with ADGP, whose clients vote on the positions that all of them send."""

from __future__ import annotations

import random

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Result
from torch import nn

import fl_app.client
from fl_app.strategies import ADGP
from fl_app.transforms import error_feedback, prune_aligned

GOOD, BAD = ("great", "warm", "bright", "kind", "fine"), ("awful", "cold", "dull", "rude", "poor")
WORDS = ("the", "film", "room", "meal", "staff", "was", "and", "very", "a", "bit", *GOOD, *BAD)
K = 0.3
"""Share of every layer that is sent."""


class Net(nn.Module):
    """Embedding, GRU and two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), 8)
        self.gru = nn.GRU(8, 16, batch_first=True)
        self.output = nn.Linear(16, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of sentences (N, L)."""
        states, _ = self.gru(self.embedding(tokens))
        return self.output(states[:, -1])


def reviews(seed: int, count: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sentences as tokens (N, 6), and whether each is a good one."""
    draw = random.Random(seed)
    sentences, labels = [], []
    for _ in range(count):
        label = draw.randrange(2)
        praise = draw.choice((BAD, GOOD)[label])
        sentences.append(["the", draw.choice(WORDS[1:5]), "was", draw.choice(("very", "a")), "bit", praise])
        labels.append(label)
    return torch.tensor([[WORDS.index(word) for word in sentence] for sentence in sentences]), torch.tensor(
        labels
    )


def train(model: nn.Module, context: Context, config: dict) -> tuple[int, dict[str, float]]:
    """Leave the gradient of this node's sentences: ADGP averages gradients, and the server steps."""
    tokens, labels = reviews(int(context.node_config["partition-id"]))
    loss = nn.functional.cross_entropy(model(tokens), labels)
    loss.backward()
    return len(tokens), {"train_loss": loss.item()}


def evaluate(model: nn.Module, context: Context, config: dict) -> tuple[int, dict[str, float]]:
    """Return the accuracy on other sentences of this node."""
    tokens, labels = reviews(1000 + int(context.node_config["partition-id"]))
    with torch.no_grad():
        return len(tokens), {"accuracy": (model(tokens).argmax(1) == labels).float().mean().item()}


defense = error_feedback(prune_aligned(k=K, k1=0.05))
client = fl_app.client.app(Net, train, defense=defense, evaluate=evaluate)
server = ServerApp()


def measure(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the accuracy on sentences that no client has."""
    tokens, labels = reviews(2000)
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": (model(tokens).argmax(1) == labels).float().mean().item()})


def federate(grid: Grid, config: dict) -> Result:
    """Train with the nodes that are there; clients evaluate, too."""
    torch.manual_seed(0)
    strategy = ADGP(Net(), lr=config["lr"], k=K, location="vote", fraction_evaluate=1.0)
    return strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=measure,
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation."""
    federate(grid, context.run_config)
