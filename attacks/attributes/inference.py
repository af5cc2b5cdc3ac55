"""Property inference: a classifier trained on updates of public samples (Melis et al. 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from attacks.attributes.ridge import fit_ridge, unit
from attacks.base import PROPERTY, PropertyGuess, StepListener
from fl_app.types import PropertyQuestion, Update


@dataclass(frozen=True)
class InferProperty:
    """Guess whether an update's samples have a property, by ridge regression on example updates.

    ``property`` names it: ``class:1``, or a feature of a table's rows such as ``sex:Male``. It ``holds`` if
    any sample has it, or most of them. ``examples`` updates of public samples are computed for each attacked
    round; an adaptive attacker's go through the client's defense.
    """

    property: str = "class:0"
    holds: str = "most"
    examples: int = 100
    adaptive: bool = True
    seed: int = 0

    infers: ClassVar[str] = PROPERTY

    def __post_init__(self) -> None:
        """Refuse settings that ask nothing."""
        if self.holds not in ("any", "most"):
            raise ValueError(f"property: holds must be any or most, got {self.holds!r}")
        if self.examples < 10:
            raise ValueError(f"property: examples must be at least 10, got {self.examples}")

    def __call__(self, question: PropertyQuestion, *, on_step: StepListener | None = None) -> PropertyGuess:
        """Return the guess with the classifier's success on examples that it did not see."""
        names = list(question.seen.update)
        rows = torch.stack([features(one, names) for one in question.examples])
        model = fit_ridge(rows, question.answers)
        guess = model(features(question.seen.update, names))
        expected = float(((model.left_out > 0) == question.answers.bool()).double().mean())
        if on_step is not None:
            on_step(1, 1, 0.0)
        return PropertyGuess(guess, expected)


infer_property = InferProperty


def features(update: Update, names: list[str]) -> Tensor:
    """Return the update, and for each layer with a bias the mean input that its gradients agree on.

    The gradient of a layer's weight is a sum of outer products of what comes back and what went in, that of
    its bias a sum of what comes back. The sign of what comes back depends on the labels; their product does
    not. All blocks are of equal length.
    """
    parts = {name: update[name].detach().cpu().double() for name in names}
    blocks = [torch.cat([part.flatten() for part in parts.values()])]
    for name, weight in parts.items():
        bias = parts.get(f"{name.removesuffix('weight')}bias") if name.endswith("weight") else None
        if bias is not None and weight.ndim > 1 and len(bias) == len(weight):
            blocks.append(bias @ weight.flatten(1) / bias.square().sum().clamp_min(1e-30))
    return torch.cat([unit(block) for block in blocks])
