"""How a client computes an update from its data."""

from fl_app.training import batch_norm
from fl_app.training.epochs import run_epochs
from fl_app.training.evaluation import evaluate
from fl_app.training.gradient import compute_gradient
from fl_app.training.local_data import Batch, LocalData
from fl_app.training.schedules import Schedule, constant, piecewise
from fl_app.training.trainer import Job, Trained, Trainer, parameters

__all__ = [
    "Batch",
    "Job",
    "LocalData",
    "Schedule",
    "Trained",
    "Trainer",
    "batch_norm",
    "compute_gradient",
    "constant",
    "evaluate",
    "parameters",
    "piecewise",
    "run_epochs",
]
