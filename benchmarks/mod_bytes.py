"""Bytes of a reply that a mod defended, as weights and packed: the table of docs/mods.md."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from torch import nn
from torch.nn import functional as F

from fl_app.mods import MODS
from fl_app.wire.messages import content_bytes

SHOWN = ("none", "topk", "dgp", "sign", "int8")


def main() -> None:
    """Print a row for each mod."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    asked = RecordDict({"arrays": ArrayRecord(net.state_dict())})
    x, y = torch.rand(32, 784), torch.randint(0, 10, (32,))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    for name in SHOWN:
        sizes = []
        for packed in (False, True):
            reply = RecordDict(
                {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": 32})}
            )
            context = Context(1, 1, {}, RecordDict(), {})
            sizes.append(content_bytes(MODS[name](packed=packed).rewrite(asked, reply, context, 1)))
        print(f"| {name} | {sizes[0]:,} | {sizes[1]:,} |")


if __name__ == "__main__":
    main()
