"""Adapters of low rank on a small text classifier; only they and the embeddings travel."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

client, server = ClientApp(), ServerApp()


class Lora(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, base.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.embed = nn.Embedding(200, 12)
            self.hidden = Lora(nn.Linear(12, 12), 2)
            self.out = nn.Linear(12, 2).requires_grad_(False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, input_ids, labels=None):
        logits = self.out(torch.tanh(self.hidden(self.dropout(self.embed(input_ids)).mean(1))))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def trained(net):
    state = net.state_dict()
    return {k.replace(".default", ""): v for k, v in state.items() if "lora_" in k or "embed" in k}


def load(net, arrays):
    names = {k.replace(".default", ""): k for k in net.state_dict()}
    net.load_state_dict({names[k]: v for k, v in arrays.items()}, strict=False)


@client.train()
def train(msg, context):
    net = Net()
    load(net, msg.content["arrays"].to_torch_state_dict())
    net.train()
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    tokens = torch.randint(0, 200, (8, 6), generator=generator)
    labels = torch.randint(0, 2, (8,), generator=generator)
    optimiser = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.01, weight_decay=0.0)
    for input_ids, target in DataLoader(TensorDataset(tokens, labels), batch_size=4, shuffle=True):
        loss = net(input_ids=input_ids, labels=target)["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimiser.step()
        optimiser.zero_grad()
    content = {"arrays": ArrayRecord(trained(net)), "m": MetricRecord({"num-examples": 8})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=ArrayRecord(trained(Net())), num_rounds=3)
