"""FedSGD: clients answer with the gradient of one batch and train nothing."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from torch import nn

client, server = ClientApp(), ServerApp()


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(49, 20), nn.Sigmoid(), nn.Linear(20, 5))


@client.train()
def train(msg, context):
    net = make()
    net.load_state_dict(msg.content["weights"].to_torch_state_dict())
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    image, label = torch.rand(1, 1, 7, 7, generator=generator), torch.tensor([3])
    nn.functional.cross_entropy(net(image), label).backward()
    gradients = {name: parameter.grad for name, parameter in net.named_parameters()}
    return Message(
        RecordDict({"gradients": ArrayRecord(gradients), "m": MetricRecord({"loss": 0.0})}), reply_to=msg
    )


@server.main()
def main(grid, context):
    arrays = ArrayRecord(make().state_dict())
    for _ in range(2):
        orders = [Message(RecordDict({"weights": arrays}), node, "train") for node in grid.get_node_ids()]
        grid.send_and_receive(orders)
