"""Properties of samples that an attacker asks for: a class, or a feature of a table's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Trait:
    """A property of samples, and when a batch has it."""

    name: str
    holds: str
    has: Callable[[Tensor, Tensor], Tensor]
    """From inputs and labels to which samples have it (N,)."""

    def of_batch(self, inputs: Tensor, labels: Tensor) -> bool:
        """Return whether a batch has the property."""
        found = self.has(inputs, labels)
        return bool(found.any()) if self.holds == "any" else float(found.double().mean()) > 0.5


def trait_of(name: str, holds: str, num_classes: int, features: tuple[str, ...]) -> Trait:
    """Return the property that a name describes; raise a ValueError that lists the choices."""
    kind, _, value = name.partition(":")
    feature = name.replace(":", "=", 1)
    if kind == "class" and value.isdigit() and int(value) < num_classes:
        return Trait(name, holds, lambda inputs, labels: labels == int(value))
    if feature in features:
        column = features.index(feature)
        # a category is 0 or 1, a scaled number is above its mean or not
        return Trait(name, holds, lambda inputs, labels: inputs[:, column] > (0.5 if "=" in feature else 0.0))
    named = [feature.replace("=", ":", 1) for feature in features]
    choices = ", ".join([f"class:0 to class:{num_classes - 1}", *named])
    raise ValueError(f"attack.property: must be one of {choices}, got {name!r}")
