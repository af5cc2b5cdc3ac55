"""Training loops that do by hand what an optimiser or a wrapper would do."""

import copy
import threading

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

client, server = ClientApp(), ServerApp()
LR = 0.1


def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 4))


def weights_by_hand(net, x, y, _):
    net.zero_grad()
    cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= LR * p.grad


def data_by_hand(net, x, y, _):
    gradients = torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters()))
    for p, gradient in zip(net.parameters(), gradients, strict=True):
        p.data = p.data - LR * gradient


def clipped_and_noised(net, x, y, optimiser):
    optimiser.zero_grad()
    cross_entropy(net(x), y).backward()
    norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in net.parameters()))
    for p in net.parameters():
        p.grad.mul_(min(1.0, 0.5 / float(norm)))
        p.grad += 0.01 * torch.randn(p.shape)
    optimiser.step()


def sharpness_aware(net, x, y, optimiser):
    optimiser.zero_grad()
    cross_entropy(net(x), y).backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
        steps = [p.grad * (0.05 / norm) for p in net.parameters()]
        for p, step in zip(net.parameters(), steps, strict=True):
            p.add_(step)
    optimiser.zero_grad()
    cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for p, step in zip(net.parameters(), steps, strict=True):
            p.sub_(step)
    optimiser.step()


def mixed_precision(net, x, y, optimiser):
    optimiser.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = cross_entropy(net(x), y)
    loss.backward()
    optimiser.step()


def with_closure(net, x, y, optimiser):
    def closure():
        optimiser.zero_grad()
        loss = cross_entropy(net(x), y)
        loss.backward()
        return loss

    optimiser.step(closure)


def projected(net, x, y, optimiser):
    optimiser.zero_grad()
    cross_entropy(net(x), y).backward()
    optimiser.step()
    with torch.no_grad():
        for p in net.parameters():
            p.clamp_(-0.2, 0.2)


def in_a_thread(net, x, y, optimiser):
    thread = threading.Thread(target=projected, args=(net, x, y, optimiser))
    thread.start()
    thread.join()


def constant(net, x, y, optimiser):
    cross_entropy(net(x), y).backward()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.full(p.shape, 0.25))


def scripted(net, x, y, optimiser):
    twin = torch.jit.script(copy.deepcopy(net))
    inner = torch.optim.SGD(twin.parameters(), lr=LR)
    cross_entropy(twin(x), y).backward()
    inner.step()
    net.load_state_dict(twin.state_dict())


WAYS = {
    name: function
    for name, function in globals().items()
    if callable(function) and getattr(function, "__module__", "") == __name__ and name != "make"
}


@client.train()
def train(msg, context):
    way = context.run_config["way"]
    net = make()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    data = TensorDataset(torch.rand(8, 1, 12, 12, generator=generator), torch.arange(8) % 4)
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    average = copy.deepcopy(net)
    for x, y in DataLoader(data, batch_size=4):
        if way == "accumulated":
            (cross_entropy(net(x), y) / 2).backward()
            continue
        WAYS.get(way, projected)(net, x, y, optimiser)
        with torch.no_grad():
            for a, p in zip(average.parameters(), net.parameters(), strict=True):
                a.mul_(0.9).add_(p, alpha=0.1)
    if way == "accumulated":
        optimiser.step()
    sent = average if way == "averaged" else net
    content = {"arrays": ArrayRecord(sent.state_dict()), "m": MetricRecord({"num-examples": 8})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid, initial_arrays=ArrayRecord(make().state_dict()), num_rounds=2
    )
