"""Local training: a client's update computed from its data, and the evaluation of models."""

from fl_app.training import batch_norm
from fl_app.training.epochs import run_epochs
from fl_app.training.evaluation import Evaluation, evaluate
from fl_app.training.gradient import compute_gradient
from fl_app.training.local_data import Augment, Batch, LocalData
from fl_app.training.own_evaluation import evaluate_own
from fl_app.training.predictions import Predict, class_logits, classify, transcribe
from fl_app.training.public_training import PublicRound
from fl_app.training.rules import (
    Differentiate,
    Loss,
    Rules,
    Step,
    backpropagate,
    cross_entropy,
    parameters,
    state_buffers,
    tied,
)
from fl_app.training.schedules import Schedule, constant, piecewise
from fl_app.training.task import Task, task_of
from fl_app.training.trainer import Job, Trained, Trainer

__all__ = [
    "Augment",
    "Batch",
    "Differentiate",
    "Evaluation",
    "Job",
    "LocalData",
    "Loss",
    "Predict",
    "PublicRound",
    "Rules",
    "Schedule",
    "Step",
    "Task",
    "Trained",
    "Trainer",
    "backpropagate",
    "batch_norm",
    "class_logits",
    "classify",
    "compute_gradient",
    "constant",
    "cross_entropy",
    "evaluate",
    "evaluate_own",
    "parameters",
    "piecewise",
    "run_epochs",
    "state_buffers",
    "task_of",
    "tied",
    "transcribe",
]
