"""Records and keys of the app's own, differences instead of weights, FedProx's loss, a query."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn
from torch.utils.data import DataLoader, Dataset

client, server = ClientApp(), ServerApp()


class Pictures(Dataset):
    def __init__(self, partition):
        generator = torch.Generator().manual_seed(partition)
        self.images = torch.rand(10, 1, 8, 8, generator=generator)
        self.labels = torch.randint(0, 10, (10,), generator=generator).tolist()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"scan": self.images[i], "finding": self.labels[i]}


def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


@client.train("local_pass")
def train(msg, context):
    net = make()
    sent = list(msg.content["global-model"].to_torch_state_dict().values())
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), sent, strict=True):
            parameter.copy_(value)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    optimiser = torch.optim.SGD(net.parameters(), lr=0.2, nesterov=True, momentum=0.5)
    loader = DataLoader(Pictures(context.node_config["partition-id"]), batch_size=5, shuffle=True)
    for batch in loader:
        net.zero_grad()
        loss = nn.functional.nll_loss(torch.log_softmax(net(batch["scan"]), 1), batch["finding"])
        for parameter, start in zip(net.parameters(), before, strict=True):
            loss = loss + 0.05 * (parameter - start).pow(2).sum()
        loss.backward()
        optimiser.step()
    change = {f"t{i}": b - a.detach() for i, (a, b) in enumerate(zip(net.parameters(), before, strict=True))}
    content = {"change": ArrayRecord(change), "local-stats": MetricRecord({"n_samples": 10})}
    return Message(RecordDict(content), reply_to=msg)


@client.query("hello")
def hello(msg, context):
    return Message(RecordDict({"c": ConfigRecord({"ready": True})}), reply_to=msg)


@server.main()
def main(grid, context):
    weights = list(make().state_dict().values())
    nodes = list(grid.get_node_ids())
    empty = RecordDict({"c": ConfigRecord({"hi": 1})})
    grid.send_and_receive([Message(empty, node, "query.hello") for node in nodes])
    for _ in range(4):
        record = ArrayRecord({f"w{i}": weight for i, weight in enumerate(weights)})
        orders = [Message(RecordDict({"global-model": record}), node, "train.local_pass") for node in nodes]
        replies = list(grid.send_and_receive(orders))
        changes = [list(reply.content["change"].to_torch_state_dict().values()) for reply in replies]
        weights = [w - sum(parts) / len(parts) for w, *parts in zip(weights, *changes, strict=True)]
