"""Random numbers that privacy depends on: seeded in simulations, else from the operating system.

Whoever knows a run's seed can draw the same numbers again and subtract them. Unseeded
torch generators do not help: their seed has 32 bits, and some observed numbers reveal their state. `OwnDraws`
has the type of a generator, for callers that need one; the functions here recognise it and draw each number
from the operating system.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.privacy.normal_noise import secure_noise, secure_uniform
from fl_app.seeding import unpredictable_state


class OwnDraws(torch.Generator):
    """Generator whose numbers cannot be replayed."""

    def __init__(self) -> None:
        super().__init__()
        # for draws that protect nobody, such as augmentation choices: 624 words instead of one seed
        self.set_state(unpredictable_state())


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal numbers of the shape and type of ``like``."""
    if isinstance(generator, OwnDraws):
        return secure_noise()(like.numel()).to(like.dtype).view(like.shape).to(like.device)
    drawn = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device)
    return drawn.to(like.device)


def exponential(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return exponential numbers with mean 1, of the shape and type of ``like``."""
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
