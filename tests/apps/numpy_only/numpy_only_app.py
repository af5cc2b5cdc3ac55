"""No torch: a mean in numpy."""

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client, server = ClientApp(), ServerApp()


@client.train()
def train(msg, context):
    (weights,) = msg.content["arrays"].to_numpy_ndarrays()
    content = {"arrays": ArrayRecord([weights + 1.0]), "m": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=msg)


@server.main()
def main(grid, context):
    FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=2)
