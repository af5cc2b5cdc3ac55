"""Numbers of an update that are not, to the last digit, those that training left: room for other data."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fl_app.audit.arrays import Match, Name, State
from fl_app.audit.findings import Finding

_MASK_BITS = 8
"""Bits of each number that an unseen change may carry, at most, within the tolerance of a match."""


def other_digits(arrays: Mapping[Name, np.ndarray], meaning: Match, state: State) -> int:
    """Return how many numbers of a reply differ from those that training left, cast to the reply's type."""
    if meaning.factor != 1.0:
        return 0
    own = state.of(meaning.kind)
    return sum(
        0 if _is_written(arrays[place], own[name], state, name) else _differing(arrays[place], own[name])
        for place, name in meaning.names.items()
    )


def digit_findings(differing: int) -> list[Finding]:
    """Return the finding of numbers that training did not leave."""
    if not differing:
        return []
    return [
        Finding(
            "update-is-not-what-was-trained",
            "medium",
            f"{differing} numbers of the update differ in their last digits from those that training left: "
            f"they could carry about {_MASK_BITS * differing} bits a reply.",
            "",
            f"{differing} numbers changed after training",
            "0 numbers",
        )
    ]


def _is_written(array: np.ndarray, own: torch.Tensor, state: State, name: str) -> bool:
    """Return whether an array is a tensor as any honest way of writing gives it."""
    plain = own.detach()
    forms = [plain, plain.half(), plain.bfloat16(), plain.float()]
    start = state.start.get(name)
    if start is not None and start.is_floating_point() and start.shape == plain.shape:
        forms.append(start + (plain - start))  # weights that were put together from a difference
    given = array.ravel()
    return any(
        np.array_equal(form.double().numpy().ravel().astype(array.dtype), given, equal_nan=True)
        for form in forms
    )


def _differing(array: np.ndarray, own: torch.Tensor) -> int:
    return int((array.ravel() != own.detach().double().numpy().ravel().astype(array.dtype)).sum())
