"""Random numbers that protect somebody: seeded ones in simulations, else the operating system's.

Whoever knows a run's seed can draw the same numbers again and subtract them. torch's own generators are
no way out without a seed: they are seeded by 32 bits, and their state follows from some numbers that were
seen. `OwnDraws` is a generator by type, for all that wants one; the functions here know it and take its
numbers from the operating system one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.privacy.normal_noise import secure_noise, secure_uniform
from fl_app.seeding import unpredictable_state


class OwnDraws(torch.Generator):
    """A generator whose numbers nobody can draw again."""

    def __init__(self) -> None:
        super().__init__()
        # for draws that protect nobody, such as the choice of an augmentation: 624 words instead of one seed
        self.set_state(unpredictable_state())


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal numbers of the shape and type of ``like``."""
    if isinstance(generator, OwnDraws):
        return secure_noise()(like.numel()).to(like.dtype).view(like.shape).to(like.device)
    drawn = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device)
    return drawn.to(like.device)


def exponential(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers of the exponential law with mean 1, of the shape and type of ``like``."""
    if isinstance(generator, OwnDraws):
        drawn = -torch.log1p(-secure_uniform(like.numel()))
        return drawn.to(like.dtype).view(like.shape).to(like.device)
    empty = torch.empty(like.shape, dtype=like.dtype, device=generator.device)
    return empty.exponential_(generator=generator).to(like.device)


def uniform(count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` numbers from [0, 1)."""
    if isinstance(generator, OwnDraws):
        return secure_uniform(count)
    return torch.rand(count, generator=generator, device="cpu")
