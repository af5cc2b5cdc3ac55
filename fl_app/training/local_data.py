"""One client's samples, and which of them a round uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fl_app.data import Samples, normalise, pixels
from fl_app.seeding import generator_for


@dataclass(frozen=True)
class Batch:
    """Samples as the model takes them, and as they look."""

    inputs: Tensor
    labels: Tensor
    pixels: Tensor


@dataclass(frozen=True)
class LocalData:
    """A client's own part of the data."""

    samples: Samples
    mean: tuple[float, ...]
    std: tuple[float, ...]
    seed: int
    client: int

    def __len__(self) -> int:
        return len(self.samples)

    def order(self, epoch: int) -> Tensor:
        """Return the order in which pass ``epoch`` over the samples goes."""
        generator = generator_for(self.seed, epoch, self.client, "batches")
        return torch.randperm(len(self), generator=generator, device="cpu")

    def window(self, start: int, size: int) -> Tensor:
        """Return ``size`` indices from position ``start`` of an endless row of shuffled passes.

        A pure function of the position: no cursor has to survive between rounds.
        """
        indices: list[Tensor] = []
        while size > 0:
            epoch, offset = divmod(start, len(self))
            part = self.order(epoch)[offset : offset + size]
            indices.append(part)
            start, size = start + len(part), size - len(part)
        return torch.cat(indices)

    def batch(self, indices: Tensor, device: torch.device, dtype: torch.dtype) -> Batch:
        """Return the samples at ``indices`` on the device."""
        chosen = self.samples.take(indices)
        shown = pixels(chosen.inputs, device, dtype)
        return Batch(normalise(shown, self.mean, self.std), chosen.labels.to(device), shown)
