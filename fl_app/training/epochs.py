"""FedAvg: the change of the weights over local passes of SGD."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fl_app.training.local_data import Batch, LocalData
from fl_app.training.trainer import Job, Trained, Trainer, parameters


def run_epochs(
    epochs: int = 1,
    batch_size: int = 32,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    steps: int | None = None,
) -> Trainer:
    """Run ``epochs`` passes (or ``steps`` steps) of SGD and return weights after minus before.

    The optimiser starts anew in every round: a client is no lasting object. In an
    audited round the client trains on as many samples as the audit's batch has.
    """
    for name, value, least in (
        ("epochs", epochs, 1),
        ("batch_size", batch_size, 1),
        ("steps", steps or 1, 1),
    ):
        if value < least:
            raise ValueError(f"run_epochs: {name} must be at least {least}, got {value}")
    if not 0 <= momentum < 1:
        raise ValueError(f"run_epochs: momentum must be in [0, 1), got {momentum}")
    if weight_decay < 0:
        raise ValueError(f"run_epochs: weight_decay must be at least 0, got {weight_decay}")

    def train(model: nn.Module, data: LocalData, job: Job) -> Trained:
        weights = parameters(model)
        first = next(iter(weights.values()))
        before = {name: p.detach().clone() for name, p in weights.items()}
        optimiser = torch.optim.SGD(
            list(weights.values()), lr=job.lr, momentum=momentum, weight_decay=weight_decay
        )
        samples = min(job.batch_size or len(data), len(data))
        plan = _batches(data, job.round, samples, min(batch_size, samples), epochs, steps)
        kept: list[Batch] = []
        losses, seen = 0.0, 0
        for chosen in plan:
            batch = data.batch(chosen, first.device, first.dtype)
            optimiser.zero_grad()
            loss = F.cross_entropy(model(batch.inputs), batch.labels)
            loss.backward()
            optimiser.step()
            if job.keep_batches and seen < samples:
                kept.append(batch)
            losses, seen = losses + float(loss.detach()) * len(chosen), seen + len(chosen)
        update = {name: p.detach() - before[name] for name, p in weights.items()}
        with torch.no_grad():
            for name, p in weights.items():
                p.copy_(before[name])
        return Trained(update, samples=samples, steps=len(plan), loss=losses / seen, batches=tuple(kept))

    return train


def _batches(
    data: LocalData, round: int, samples: int, size: int, epochs: int, steps: int | None
) -> list[torch.Tensor]:
    """Split this round's passes over ``samples`` samples into batches; a pass may end with a smaller one."""
    passes = epochs if steps is None else -(-steps * size // samples)
    batches = [
        part for k in range(passes) for part in data.order((round - 1) * passes + k)[:samples].split(size)
    ]
    return batches[:steps]
