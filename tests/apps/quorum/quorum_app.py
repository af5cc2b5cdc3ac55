"""A strategy that waits for more clients than there are."""

import numpy as np
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client, server = ClientApp(), ServerApp()


@server.main()
def main(grid, context):
    strategy = FedAvg(min_available_nodes=context.run_config["wanted"])
    strategy.start(grid=grid, initial_arrays=ArrayRecord([np.zeros(3)]), num_rounds=2)
