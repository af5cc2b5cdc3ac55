"""DP-SGD by Opacus in every client; the accountant is kept over the rounds, or forgotten."""

import json

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

client, server = ClientApp(), ServerApp()


def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4))


@client.train()
def train(msg, context):
    flaw = context.run_config["flaw"]
    net = make()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    data = TensorDataset(torch.rand(32, 1, 8, 8, generator=generator), torch.arange(32) % 4)
    engine = PrivacyEngine(accountant="rdp")
    if flaw != "forgotten" and "dp" in context.state:
        engine.accountant.history = [tuple(row) for row in json.loads(context.state["dp"]["history"])]
    private, optimiser, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=8),
        noise_multiplier=1.2,
        max_grad_norm=1.0,
        poisson_sampling=flaw != "sampling",
    )
    for images, labels in loader:
        optimiser.zero_grad()
        nn.functional.cross_entropy(private(images), labels).backward()
        optimiser.step()
    context.state["dp"] = ConfigRecord({"history": json.dumps(engine.accountant.history)})
    metrics = {"num-examples": 32, "epsilon": engine.get_epsilon(delta=1e-3)}
    content = {"arrays": ArrayRecord(net.state_dict()), "m": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid, initial_arrays=ArrayRecord(make().state_dict()), num_rounds=3
    )
