"""Local differential privacy whose sensitivity is not the clipping norm."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

server = ServerApp()
client = ClientApp(mods=[LocalDpMod(1.0, 0.001, 0.9, 1e-5)])


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4))


@client.train()
def train(msg, context):
    net = make()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    data = TensorDataset(torch.rand(8, 64, generator=generator), torch.arange(8) % 4)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for images, labels in DataLoader(data, batch_size=4):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "m": MetricRecord({"num-examples": 8})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid, initial_arrays=ArrayRecord(make().state_dict()), num_rounds=20
    )
