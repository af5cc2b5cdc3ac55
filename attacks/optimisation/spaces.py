"""Search spaces of images: what the search moves, the images that it means, and the prior on them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attacks.optimisation.image_space import draw_images, into_box, to_pixels
from attacks.optimisation.optimisers import Adam, Optimiser, Variables
from attacks.optimisation.priors import colour_variation
from attacks.optimisation.problem import Problem
from attacks.priors import Photographs

OUTSIDE = 1.0
"""Weight of the mean square by which pixels of a code leave [0, 1]."""


class Space(ABC):
    """One way to search for a batch of images."""

    signed: bool
    """Whether the search steps by signs of the slope."""
    rounds: int
    """Number of gradients that the images of a guess are behind, each behind one."""

    @abstractmethod
    def draw(self, problem: Problem, generator: torch.Generator) -> Variables:
        """Return one guess to start from, without the problem axis."""

    @abstractmethod
    def pixels(self, variables: Variables) -> Tensor:
        """Return the images that the variables mean, (..., B, C, H, W)."""

    @abstractmethod
    def penalty(self, variables: Variables) -> Tensor:
        """Return how unlike a photograph each guess is, (P,)."""

    def project(self, variables: Variables) -> Variables:
        """Return the nearest variables that mean valid images."""
        return variables

    def optimiser(self) -> Callable[[], Optimiser]:
        """Return the factory of the optimiser."""
        return partial(Adam, signed=self.signed)


@dataclass(frozen=True)
class PixelSpace(Space):
    """Pixels by themselves, with a penalty ``tv`` on their colour variation."""

    tv: float
    spread: float
    """Deviation of the first guess."""
    rounds: int = 1
    signed = True

    def draw(self, problem: Problem, generator: torch.Generator) -> Variables:
        """Return a guess around mid-grey."""
        return {"images": draw_images(problem, generator, self.spread)}

    def pixels(self, variables: Variables) -> Tensor:
        """Return the pixels."""
        return to_pixels(variables["images"])

    def penalty(self, variables: Variables) -> Tensor:
        """Return the colour variation; each image of a batch has a smaller part in the gradient."""
        images = variables["images"]
        return self.tv * math.sqrt(images.shape[1] / self.rounds) * colour_variation(images)

    def project(self, variables: Variables) -> Variables:
        """Return the images inside the box."""
        return into_box(variables)


@dataclass(frozen=True)
class CodeSpace(Space):
    """Codes of a law of photographs, with a penalty ``weight`` on their mean square."""

    law: Photographs
    weight: float
    spread: float
    """Deviation of the first guess, in codes."""
    rounds: int = 1
    signed = False

    def draw(self, problem: Problem, generator: torch.Generator) -> Variables:
        """Return a guess near the mean image."""
        shape = (problem.batch_size, len(self.law.basis))
        codes = torch.randn(shape, generator=generator, dtype=problem.target.dtype, device="cpu")
        return {"codes": self.spread * codes}

    def pixels(self, variables: Variables) -> Tensor:
        """Return the images of the codes."""
        return self.law.pixels(variables["codes"])

    def penalty(self, variables: Variables) -> Tensor:
        """Return the mean square of the codes, plus that of what lies outside of valid pixels."""
        codes = variables["codes"]
        pixels = self.law.pixels(codes)
        outside = (pixels - pixels.detach().clamp(0, 1)).square().flatten(1).mean(dim=1)
        return (
            self.weight * math.sqrt(codes.shape[1] / self.rounds) * codes.square().flatten(1).mean(dim=1)
            + OUTSIDE * outside
        )
