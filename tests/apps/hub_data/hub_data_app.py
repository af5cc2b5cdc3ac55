"""A hub data set through flwr_datasets, with a Normalize of torchvision."""

import torch
from datasets import load_dataset
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr_datasets import FederatedDataset
from flwr_datasets.partitioner import DirichletPartitioner
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import Compose, Normalize, ToTensor

client, server = ClientApp(), ServerApp()
pixels = Compose([ToTensor(), Normalize((0.5,), (0.25,))])
fds = None


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 2))


def transform(batch):
    batch["img"] = [pixels(img) for img in batch["img"]]
    return batch


@client.train()
def train(msg, context):
    global fds
    if fds is None:
        partitioner = DirichletPartitioner(
            num_partitions=context.node_config["num-partitions"], partition_by="label", alpha=5.0, seed=1
        )
        fds = FederatedDataset(dataset="someone/scans", partitioners={"train": partitioner})
    parts = fds.load_partition(context.node_config["partition-id"]).train_test_split(test_size=0.2, seed=4)
    loader = DataLoader(parts.with_transform(transform)["train"], batch_size=4, shuffle=True)
    net = make()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in loader:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(batch["img"]), batch["label"]).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "m": metrics}), reply_to=msg)


@server.main()
def main(grid, context):
    assert len(load_dataset("someone/scans", split="test"))
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid, initial_arrays=ArrayRecord(make().state_dict()), num_rounds=2
    )
