"""The legacy interface: client_fn with a NumPyClient, and server_fn."""

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 6))


def weights(net):
    return [value.cpu().numpy() for value in net.state_dict().values()]


class Client(NumPyClient):
    def __init__(self, partition):
        generator = torch.Generator().manual_seed(partition)
        images = torch.rand(2, 1, 8, 8, generator=generator).cumsum(2).clamp(0, 4) / 4
        labels = torch.randint(0, 6, (2,), generator=generator)
        self.loader = DataLoader(TensorDataset(images, labels), batch_size=1)
        self.net = make()

    def fit(self, parameters, config):
        names = self.net.state_dict().keys()
        self.net.load_state_dict({k: torch.tensor(v) for k, v in zip(names, parameters, strict=True)})
        optimiser = torch.optim.SGD(self.net.parameters(), lr=0.05)
        for images, labels in self.loader:
            optimiser.zero_grad()
            loss = nn.CrossEntropyLoss()(self.net(images), labels)
            loss.backward()
            optimiser.step()
        return weights(self.net), len(self.loader.dataset), {"loss": float(loss)}

    def evaluate(self, parameters, config):
        return 0.0, 2, {"accuracy": 0.5}


def client_fn(context):
    return Client(context.node_config["partition-id"]).to_client()


def server_fn(context):
    np.random.seed(0)
    strategy = FedAvg(initial_parameters=ndarrays_to_parameters(weights(make())))
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=4))


client = ClientApp(client_fn=client_fn)
server = ServerApp(server_fn=server_fn)
