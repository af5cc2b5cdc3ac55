"""Flower strategies: how the server orders, averages and moves the model."""

from fl_app.strategies.adgp import ADGP
from fl_app.strategies.fed_avg import FedAvg
from fl_app.strategies.fed_sgd import FedSGD

__all__ = ["ADGP", "FedAvg", "FedSGD"]
