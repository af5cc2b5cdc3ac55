"""A generator and a discriminator, each with an optimiser and a record of its own."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

client, server = ClientApp(), ServerApp()


def models():
    shape = nn.Unflatten(1, (1, 12, 12))
    generator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 144), nn.Sigmoid(), shape)
    return generator, nn.Sequential(nn.Flatten(), nn.Linear(144, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))


def packed(generator, judge):
    return {"generator": ArrayRecord(generator.state_dict()), "judge": ArrayRecord(judge.state_dict())}


@client.train()
def train(msg, context):
    generator, judge = models()
    generator.load_state_dict(msg.content["generator"].to_torch_state_dict())
    judge.load_state_dict(msg.content["judge"].to_torch_state_dict())
    ours, theirs = (torch.optim.Adam(m.parameters(), lr=1e-3) for m in (generator, judge))
    compare = nn.BCEWithLogitsLoss()
    draws = torch.Generator().manual_seed(context.node_config["partition-id"])
    for (real,) in DataLoader(TensorDataset(torch.rand(8, 1, 12, 12, generator=draws)), batch_size=4):
        made = generator(torch.randn(4, 8))
        theirs.zero_grad()
        true, false = compare(judge(real), torch.ones(4, 1)), compare(judge(made.detach()), torch.zeros(4, 1))
        (true + false).backward()
        theirs.step()
        ours.zero_grad()
        compare(judge(made), torch.ones(4, 1)).backward()
        ours.step()
    content = packed(generator, judge) | {"m": MetricRecord({"num-examples": 8})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    for _ in range(2):
        content = packed(*models())
        grid.send_and_receive([Message(RecordDict(content), node, "train") for node in grid.get_node_ids()])
