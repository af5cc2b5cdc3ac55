"""Fine-tuning of a head on a frozen backbone; only the head travels."""

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
        self.backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 16))
        self.heads = nn.Sequential(nn.Tanh(), nn.Linear(16, 8))
        with torch.random.fork_rng():
            torch.manual_seed(7)
            for parameter in self.backbone.parameters():
                nn.init.normal_(parameter, std=0.1)
        self.backbone.requires_grad_(False)

    def forward(self, x):
        return self.heads(self.backbone(x))


@client.train()
def train(msg, context):
    net = Net()
    net.heads.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    data = TensorDataset(
        torch.rand(6, 1, 8, 8, generator=generator), torch.randint(0, 8, (6,), generator=generator)
    )
    optimiser = torch.optim.Adam(net.heads.parameters(), lr=0.01)
    for images, labels in DataLoader(data, batch_size=3, shuffle=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimiser.step()
    arrays = ArrayRecord(net.heads.state_dict())
    return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 6})}), reply_to=msg)


@server.main()
def main(grid, context):
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(Net().heads.state_dict()), num_rounds=3)
