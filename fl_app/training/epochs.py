"""FedAvg: the change of the weights over local passes of SGD."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import nn

from fl_app.training.local_data import Batch, LocalData
from fl_app.training.rules import Step, parameters
from fl_app.training.trainer import Job, Trained, Trainer


def run_epochs(
    epochs: int = 1,
    batch_size: int = 32,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    steps: int | None = None,
    proximal_mu: float = 0.0,
) -> Trainer:
    """Run ``epochs`` passes (or ``steps`` steps) of SGD and return the change of the weights.

    ``proximal_mu`` adds ``proximal_mu / 2 * ||w - w_t||^2`` to the loss, where ``w_t`` is the round's
    model (FedProx). The term depends on no sample, so it joins the gradient after a defense's rules.

    The optimiser is new in every round, because clients do not persist between rounds. In an
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
    if proximal_mu < 0:
        raise ValueError(f"run_epochs: proximal_mu must be at least 0, got {proximal_mu}")

    def train(model: nn.Module, data: LocalData, job: Job) -> Trained:
        rules, weights = job.rules, parameters(model)
        first = next(iter(weights.values()))
        before = {name: p.detach().clone() for name, p in weights.items()}
        optimiser = torch.optim.SGD(
            list(weights.values()), lr=job.lr, momentum=momentum, weight_decay=weight_decay
        )
        samples = min(job.batch_size or len(data), len(data))
        size = min(batch_size, samples)
        planned_steps = steps or epochs * -(-samples // size)
        regular = min(batch_size, len(data))
        rate, per_round = rules.rate or regular / len(data), steps or epochs * -(-len(data) // regular)
        # an audited batch is not drawn by coins
        expected = size if rules.rate is None or job.batch_size is not None else rules.rate * len(data)
        step = Step(job.generator, expected=expected, rate=rate, per_round=per_round)
        kept: list[Batch] = []
        losses, seen = 0.0, 0
        for planned in islice(_batches(data, job.round, samples, size, epochs, steps), planned_steps):
            chosen = data.draw(rate, job.generator) if rules.poisson and job.batch_size is None else planned
            batch = data.batch(
                chosen, first.device, first.dtype, augment=rules.augment, generator=job.generator
            )
            loss, grads = rules.differentiate(model, batch, rules.loss, step)
            for name, p in weights.items():
                pull = proximal_mu * (p.detach() - before[name]) if proximal_mu else None
                p.grad = grads[name] if pull is None else grads[name] + pull
            optimiser.step()
            if job.keep_batches and seen < samples:
                kept.append(batch)
            losses, seen = losses + loss * len(planned), seen + len(planned)
        optimiser.zero_grad()
        update = {name: p.detach() - before[name] for name, p in weights.items()}
        with torch.no_grad():
            for name, p in weights.items():
                p.copy_(before[name])
        return Trained(
            update,
            samples=samples,
            steps=planned_steps,
            rate=rate,
            loss=losses / seen,
            batches=tuple(kept),
        )

    return train


def _batches(
    data: LocalData, round: int, samples: int, size: int, epochs: int, steps: int | None
) -> Iterator[torch.Tensor]:
    """Split this round's passes over ``samples`` samples into batches; a pass may end with a smaller one."""
    passes = epochs if steps is None else -(-steps * size // samples)
    for k in range(passes):
        yield from data.order((round - 1) * passes + k)[:samples].split(size)
