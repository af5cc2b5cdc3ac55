"""ATS: train on transformed images, so that an attacker recovers a transformed image at best.

Gao et al., "Privacy-preserving Collaborative Learning with Automatic Transformation
Search" (CVPR 2021). The best policies depend on model and data: `search_policies`
finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fl_app.defenses.defense import Defense
from fl_app.defenses.operations import LIBRARY, follow
from fl_app.training import Rules
from fl_app.types import Trace


@dataclass(frozen=True)
class Rewriting:
    """Rewriting of images by one policy."""

    policy: tuple[int, ...]

    def __call__(self, pixels: Tensor) -> Tensor:
        return follow(self.policy, pixels)

    def __str__(self) -> str:
        return ", ".join(str(LIBRARY[number]) for number in self.policy)


def ats(policies: Sequence[Sequence[int]]) -> Defense:
    """Rewrite every image by one of the policies, drawn independently per image.

    A policy is a list of indices into `LIBRARY`, in order of application. The
    published indices refer to a different library.
    """
    chosen = _rewritings(policies)

    def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.randint(len(chosen), (len(pixels),), generator=generator, device="cpu")
        changed = torch.empty_like(pixels)
        for number, rewriting in enumerate(chosen):
            mine = torch.nonzero(drawn == number).flatten().to(pixels.device)
            if len(mine) > 0:
                changed[mine] = rewriting(pixels[mine])
        return changed

    marks = Trace(zeros_sent=True, policies=tuple(rewriting.policy for rewriting in chosen))
    return Defense(rules=Rules(augment=augment), images_only=True, trained=(marks,))


def public_rewrites(defense: Sequence[Trace]) -> tuple[Callable[[Tensor], Tensor], ...]:
    """Return the rewritings of images that a defense may apply, from the policies in its traces."""
    return tuple(Rewriting(_check(policy)) for trace in defense for policy in trace.policies)


def _rewritings(policies: object) -> tuple[Rewriting, ...]:
    return tuple(Rewriting(_check(policy)) for policy in _as_list("policies", policies))


def _check(policy: object) -> tuple[int, ...]:
    numbers = _as_list("a policy", policy)
    for number in numbers:
        # True is an int in Python, but not an operation's index
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < len(LIBRARY):
            expected = f"numbers of operations, 0 to {len(LIBRARY) - 1}"
            raise ValueError(f"ats: a policy must hold {expected}, got {number!r} in {policy!r}")
    return tuple(numbers)


def _as_list(what: str, value: object) -> list[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) == 0:
        raise ValueError(f"ats: {what} must be a list with at least one entry, got {value!r}")
    return list(value)
