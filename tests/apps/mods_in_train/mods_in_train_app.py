"""Mods in the decorator: one of Flower's, and one that rounds the update to 16 bits."""

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import arrays_size_mod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

client, server = ClientApp(), ServerApp()


def halve(msg, context, call_next):
    reply = call_next(msg, context)
    record = reply.content["arrays"]
    rounded = {k: Array(v.numpy().astype(np.float16).astype(np.float32)) for k, v in record.items()}
    reply.content["arrays"] = ArrayRecord(rounded)
    return reply


def make():
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))


@client.train(mods=[arrays_size_mod, halve])
def train(msg, context):
    net = make()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    rows, labels = torch.rand(1, 12, generator=generator), torch.tensor([1])
    optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(2):
        optimiser.zero_grad()
        nn.CrossEntropyLoss()(net(rows), labels).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "m": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid, initial_arrays=ArrayRecord(make().state_dict()), num_rounds=3
    )
