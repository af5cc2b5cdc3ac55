"""FedSGD: one gradient of one batch."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fl_app.training.local_data import LocalData
from fl_app.training.trainer import Job, Trained, Trainer, parameters


def compute_gradient(batch_size: int = 32) -> Trainer:
    """Compute the gradient of the mean loss over the round's batch.

    Consecutive rounds walk through the client's samples, shuffled anew for each
    pass. A client with fewer samples than a batch uses all of them.
    """
    if batch_size < 1:
        raise ValueError(f"compute_gradient: batch_size must be at least 1, got {batch_size}")

    def train(model: nn.Module, data: LocalData, job: Job) -> Trained:
        weights = parameters(model)
        first = next(iter(weights.values()))
        stride = min(batch_size, len(data))
        size = min(job.batch_size or stride, len(data))
        indices = data.window((job.round - 1) * stride, size)
        batch = data.batch(indices, first.device, first.dtype)
        loss = F.cross_entropy(model(batch.inputs), batch.labels)
        grads = torch.autograd.grad(loss, list(weights.values()), materialize_grads=True)
        return Trained(
            update={name: grad.detach() for name, grad in zip(weights, grads, strict=True)},
            samples=len(indices),
            steps=0,
            loss=float(loss.detach()),
            batches=(batch,) if job.keep_batches else (),
        )

    return train
