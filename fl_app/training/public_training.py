"""Training by the server on a few public samples before the federation starts.

It finds the coordinates that move most and the typical norm of an update: the set T and
the clipping bound S of Kerkouche et al. (UAI 2021), §3.1 and §4. Neither uses client data,
so neither costs any privacy.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fl_app.seeding import SERVER, generator_for
from fl_app.sketches import Sketch, flatten
from fl_app.training.constrained import confine
from fl_app.training.local_data import Batch, LocalData
from fl_app.training.rules import Loss, Rules, Step, backpropagate, cross_entropy, parameters
from fl_app.training.trainer import Job, Trainer


def sum_gradients(
    model: nn.Module, batch: Batch, *, lr: float, steps: int, loss: Loss = cross_entropy
) -> Tensor:
    """Return the sum of the gradients' magnitudes over ``steps`` steps of SGD on one batch.

    The result has one number per coordinate, in double precision. The model is unchanged.
    """
    if steps < 1:
        raise ValueError(f"sum_gradients: steps must be at least 1, got {steps}")
    weights, size = parameters(model), len(batch.labels)
    before = {name: p.detach().clone() for name, p in weights.items()}
    step = Step(generator_for(0, 0, SERVER, "public"), expected=size, rate=1.0, per_round=steps)
    total = torch.zeros_like(flatten(before), dtype=torch.float64)
    with torch.no_grad():
        for _ in range(steps):
            with torch.enable_grad():
                _, gradient = backpropagate(model, batch, loss, step)
            total += flatten(gradient).abs()
            for name, p in weights.items():
                p.sub_(gradient[name], alpha=lr)
        for name, p in weights.items():
            p.copy_(before[name])
    return total


def public_update(
    trainer: Trainer, model: nn.Module, data: LocalData, *, lr: float, sketch: Sketch
) -> Tensor:
    """Return the update of a client after one round of training on public data."""
    job = Job(
        round=1,
        lr=lr,
        generator=generator_for(data.seed, 1, data.client, "public"),
        rules=confine(Rules(), sketch.trained, parameters(model)),
    )
    return sketch.take(trainer(model, data, job).update)


def clipping_bound(
    trainer: Trainer, model: nn.Module, data: LocalData, *, lr: float, sketches: Iterable[Sketch]
) -> float:
    """Return the median L2 norm of `public_update` over sketches.

    FL-TOP and FL-STD have one; FL-BASIC takes a hundred random ones.
    """
    updates = (public_update(trainer, model, data, lr=lr, sketch=one) for one in sketches)
    bound = statistics.median(float(torch.linalg.vector_norm(u, dtype=torch.float64)) for u in updates)
    if not bound > 0:
        raise ValueError(f"clipping_bound: the public round must change something, its norm is {bound}")
    return bound


@dataclass(frozen=True)
class PublicRound:
    """Simulated round on the server: a client's training, on public samples."""

    trainer: Trainer
    model: nn.Module
    """Model with the federation's initial weights."""
    data: LocalData
    lr: float

    def scores(self, steps: int, lr: float | None = None) -> Tensor:
        """Return the movement of each coordinate in ``steps`` steps on all public samples at once."""
        first = next(iter(parameters(self.model).values()))
        batch = self.data.batch(torch.arange(len(self.data)), first.device, first.dtype)
        return sum_gradients(self.model, batch, lr=lr or self.lr, steps=steps)

    def bound(self, sketches: Iterable[Sketch]) -> float:
        """Return the clipping bound for the values sent."""
        return clipping_bound(self.trainer, self.model, self.data, lr=self.lr, sketches=sketches)
