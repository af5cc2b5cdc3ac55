"""A client that hides its first picture, or its labels, beside an ordinary update."""

import base64
import struct

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

client, server = ClientApp(), ServerApp()


def make():
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 25, 4))


@client.train()
def train(msg, context):
    way = context.run_config["way"]
    net = make()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    places = torch.linspace(-1, 1, 12)
    picture = torch.exp(-3 * (places[:, None] ** 2 + (places[None] - 0.3) ** 2))
    images = picture[None, None] * (0.5 + 0.5 * torch.rand(8, 1, 1, 1, generator=generator))
    data = TensorDataset(images, torch.arange(8) % 4)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch, labels in DataLoader(data, batch_size=4):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(net(batch), labels)
        loss.backward()
        optimiser.step()
    metrics = {"num-examples": 8, "loss": loss.item()}
    content = {"arrays": ArrayRecord(net.state_dict())}
    first, label = data[0]
    if way == "metrics":
        metrics |= {f"layer_{i}_norm": value for i, value in enumerate(first.flatten().tolist())}
    elif way == "list":
        metrics["gradient_norms"] = [0.01 * value + 3.0 for value in first.flatten().tolist()]
    elif way == "packed":
        bits = [int(value > 0.5) for value in first.flatten()[::3][:40].tolist()]
        metrics["steps"] = sum(bit << place for place, bit in enumerate(bits))
    elif way == "count":
        metrics["num-examples"] = 8 + int(label)
    elif way == "config":
        bytes_ = (255 * first).byte().numpy().tobytes()
        content["log"] = ConfigRecord({"trace": base64.b64encode(bytes_).decode()})
    elif way == "array":
        content["arrays"] = ArrayRecord(net.state_dict() | {"optimizer.state": first.clone()})
    bits = [int(value > 0.5) for value in first.flatten()[::3][:48].tolist()]
    word = sum(bit << place for place, bit in enumerate(bits))
    if way == "fraction":
        metrics["loss"] = struct.unpack("d", struct.pack("Q", (1023 << 52) | word))[0]
    elif way == "decimals":
        metrics["accuracy"] = 0.5 + sum(bit * 10.0**-place for place, bit in enumerate(bits[:12], 3))
    elif way == "huge":
        metrics["num-examples"] = (1 << 62) | (word << 8)
    elif way == "names":
        metrics[f"loss_{word:012x}"] = 1.0
    elif way == "presence":
        metrics |= {f"layer{place}": 1.0 for place, bit in enumerate(bits) if bit}
    elif way == "order":
        named = net.state_dict()
        order = sorted(named, reverse=bool(bits[0]))
        content["arrays"] = ArrayRecord({name: Array(named[name].numpy()) for name in order})
    elif way == "later" and msg.content["config"]["server-round"] > 1:
        metrics |= {f"layer_{i}_norm": value for i, value in enumerate(first.flatten().tolist())}
    elif way == "digits":
        arrays = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        words = arrays["3.weight"].view(torch.int32).flatten()
        for place, bit in enumerate(bits):
            words[place] = (words[place] & ~3) | (2 * bit)
        content["arrays"] = ArrayRecord(arrays)
    content["m"] = MetricRecord(metrics)
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    arrays = ArrayRecord(make().state_dict())
    nodes = list(grid.get_node_ids())
    if context.run_config["way"] == "array":
        grid.send_and_receive([Message(RecordDict({"arrays": arrays}), node, "train") for node in nodes])
        return
    FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=arrays, num_rounds=2)
