"""FedSGD: one gradient of one batch."""

from __future__ import annotations

from torch import nn

from fl_app.training.local_data import LocalData
from fl_app.training.rules import Step, parameters
from fl_app.training.trainer import Job, Trained, Trainer


def compute_gradient(batch_size: int = 32) -> Trainer:
    """Compute the gradient of the mean loss over the round's batch.

    Consecutive rounds go through the client's samples, reshuffled for each
    pass. A client with fewer samples than a batch uses all of them.
    """
    if batch_size < 1:
        raise ValueError(f"compute_gradient: batch_size must be at least 1, got {batch_size}")

    def train(model: nn.Module, data: LocalData, job: Job) -> Trained:
        rules, first = job.rules, next(iter(parameters(model).values()))
        stride = min(batch_size, len(data))
        size = min(job.batch_size or stride, len(data))
        rate = rules.rate or stride / len(data)
        # an audited batch is not drawn by coins
        expected = size if rules.rate is None or job.batch_size is not None else rules.rate * len(data)
        step = Step(job.generator, expected=expected, rate=rate, per_round=1)
        if rules.poisson and job.batch_size is None:
            indices = data.draw(step.rate, job.generator)
        else:
            indices = data.window((job.round - 1) * stride, size)
        batch = data.batch(indices, first.device, first.dtype, augment=rules.augment, generator=job.generator)
        loss, update = rules.differentiate(model, batch, rules.loss, step)
        return Trained(
            update=update,
            samples=size,
            steps=0,
            rate=step.rate,
            loss=loss,
            batches=(batch,) if job.keep_batches else (),
        )

    return train
