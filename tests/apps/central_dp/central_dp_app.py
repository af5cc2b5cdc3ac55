"""Differential privacy by Flower's strategy wrappers, honest or with one flaw."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

client, server = ClientApp(), ServerApp()


def make(flaw):
    layers = [nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 4)]
    if flaw == "integers":
        layers.insert(2, nn.BatchNorm1d(16))
    return nn.Sequential(*layers)


@client.train()
def train(msg, context):
    flaw, partition = context.run_config["flaw"], context.node_config["partition-id"]
    net = make(flaw)
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    number = 8 * (1 + 3 * partition) if flaw == "weights" else 8
    generator = torch.Generator().manual_seed(partition)
    data = TensorDataset(torch.rand(number, 64, generator=generator), torch.arange(number) % 4)
    optimiser = torch.optim.SGD(net.parameters(), lr=2.0)
    for images, labels in DataLoader(data, batch_size=4):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "m": MetricRecord({"num-examples": number})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    flaw = context.run_config["flaw"]
    inner = FedAvg(fraction_evaluate=0.0, min_available_nodes=4, fraction_train=1.0)
    kind = DifferentialPrivacyServerSideFixedClipping
    if flaw == "clipping":
        kind = DifferentialPrivacyClientSideFixedClipping
    noise = {"noise": 0.0, "weak": 0.3}.get(flaw, 4.0)
    cohort = 20 if flaw == "cohort" else 4
    strategy = kind(inner, noise_multiplier=noise, clipping_norm=0.1, num_sampled_clients=cohort)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(make(flaw).state_dict()), num_rounds=3)
