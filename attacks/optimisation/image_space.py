"""Search space of images: mid-grey at zero, valid pixels from -2 to 2.

That is about the range of natural images after the usual normalisation, so step
sizes and prior weights do not depend on the model's normalisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.optimisation.optimisers import Variables
from attacks.optimisation.problem import Problem

RANGE = 2.0


def draw_images(problem: Problem, generator: torch.Generator, spread: float) -> Tensor:
    """Return a random batch (B, C, H, W) around mid-grey."""
    shape = (problem.batch_size, *problem.input_shape)
    return spread * torch.randn(shape, generator=generator, dtype=problem.target.dtype, device="cpu")


def to_pixels(images: Tensor) -> Tensor:
    """Return pixels, in [0, 1] for images inside the box."""
    return 0.5 + images / (2 * RANGE)


def into_box(variables: Variables) -> Variables:
    """Return the variables with ``images`` projected onto valid pixels."""
    return {**variables, "images": variables["images"].clamp(-RANGE, RANGE)}
