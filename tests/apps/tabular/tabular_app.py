"""Rows of patients: a classifier with one output, Adam, binary cross-entropy."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

client, server = ClientApp(), ServerApp()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.output = nn.Linear(9, 24), nn.Linear(24, 1)

    def forward(self, x):
        return torch.sigmoid(self.output(torch.relu(self.layer1(x))))


@client.train()
def train(msg, context):
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    rows = torch.randn(16, 9, generator=generator)
    data = TensorDataset(rows, (rows[:, :1] > 0).float())
    optimiser = torch.optim.Adam(net.parameters(), lr=0.001)
    for values, target in DataLoader(data, batch_size=8, shuffle=True):
        optimiser.zero_grad()
        nn.BCELoss()(net(values), target).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "m": MetricRecord({"num-examples": 16})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid, initial_arrays=ArrayRecord(Net().state_dict()), num_rounds=3
    )
