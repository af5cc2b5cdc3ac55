"""One client's samples, and the batches that a round draws from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fl_app.data import Samples, normalise, pixels
from fl_app.privacy.draws import uniform
from fl_app.seeding import generator_for
from fl_app.training.predictions import Predict, classify

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""Maps pixels (N, C, H, W) in [0, 1] to replacements of the same shape for training."""
Ask = Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
"""Draws a prediction task: maps samples to the model's inputs and their labels."""


@dataclass(frozen=True)
class Batch:
    """Samples as model inputs and as raw pixels."""

    inputs: Tensor
    labels: Tensor
    pixels: Tensor
    trained: Tensor
    """Pixels behind the inputs: ``pixels``, unless augmented."""
    predict: Predict = classify
    """Prediction function of the task."""


@dataclass(frozen=True)
class LocalData:
    """A client's share of the data."""

    samples: Samples
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    client: int
    predict: Predict = classify
    ask: Ask | None = None
    """Draws the labels of each batch; None: samples have their own."""

    def __len__(self) -> int:
        return len(self.samples)

    def order(self, epoch: int) -> Tensor:
        """Return the order of the samples in pass ``epoch``."""
        generator = generator_for(self.seed, epoch, self.client, "batches")
        return torch.randperm(len(self), generator=generator, device="cpu")

    def window(self, start: int, size: int) -> Tensor:
        """Return ``size`` indices from position ``start`` of an endless sequence of shuffled passes.

        This is a pure function of the position, so no cursor has to survive between rounds.
        """
        indices: list[Tensor] = []
        while size > 0:
            epoch, offset = divmod(start, len(self))
            part = self.order(epoch)[offset : offset + size]
            indices.append(part)
            start, size = start + len(part), size - len(part)
        return torch.cat(indices)

    def draw(self, rate: float, generator: torch.Generator) -> Tensor:
        """Return the indices of a Poisson draw, which includes each sample with probability ``rate``."""
        return torch.nonzero(uniform(len(self), generator) < rate).flatten()

    def batch(
        self,
        indices: Tensor,
        device: torch.device,
        dtype: torch.dtype,
        *,
        augment: Augment | None = None,
        generator: torch.Generator | None = None,
    ) -> Batch:
        """Return the samples at ``indices`` on the device; ``generator`` drives all random draws.

        Without one, nothing is augmented, and the task's labels are always the same.
        """
        chosen = self.samples.take(indices)
        shown = pixels(chosen.inputs, device, dtype)
        trained = shown if augment is None or generator is None else augment(shown, generator)
        inputs, labels = normalise(trained, self.mean, self.std), chosen.labels.to(device)
        if self.ask is not None:
            inputs, labels = self.ask(inputs, generator or generator_for(self.seed, 0, self.client, "ask"))
        return Batch(inputs, labels, shown, trained, self.predict)
