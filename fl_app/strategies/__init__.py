"""Flower strategies: the server's orders, averaging and model updates."""

from fl_app.strategies.adgp import ADGP
from fl_app.strategies.fed_avg import FedAvg
from fl_app.strategies.fed_opt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fl_app.strategies.fed_prox import FedProx
from fl_app.strategies.fed_sgd import FedSGD
from fl_app.strategies.fl_basic import FLBasic
from fl_app.strategies.fl_cs import FLCS
from fl_app.strategies.fl_std import BudgetSpent, FLStd
from fl_app.strategies.fl_top import FLTop
from fl_app.strategies.optimisers import Moment, OptimiserState, ServerOptimiser, adagrad, adam, sgd, yogi
from fl_app.strategies.outcome import NoUpdateUsed
from fl_app.strategies.secure import SecureAggregation
from fl_app.strategies.unpacked import Unpacked

__all__ = [
    "ADGP",
    "FLCS",
    "BudgetSpent",
    "FLBasic",
    "FLStd",
    "FLTop",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedProx",
    "FedSGD",
    "FedYogi",
    "Moment",
    "NoUpdateUsed",
    "OptimiserState",
    "SecureAggregation",
    "ServerOptimiser",
    "Unpacked",
    "adagrad",
    "adam",
    "sgd",
    "yogi",
]
