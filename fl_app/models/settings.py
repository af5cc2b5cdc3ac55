"""Settings that several models share: the shape of the task, and layers that are chosen by name.

No activation works in place: attacks differentiate a gradient once more, and
need every intermediate value as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from torch import nn

Choice = TypeVar("Choice")

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
}
NORMS: Mapping[str, Callable[[int], nn.Module]] = {
    "none": lambda channels: nn.Identity(),
    "batch": nn.BatchNorm2d,
    # as many groups as divide the channels, 8 at most: every width works, and no buffers are kept
    "group": lambda channels: nn.GroupNorm(math.gcd(8, channels), channels),
}


def check_task(who: str, num_classes: int, in_shape: Sequence[int], least: int = 1) -> tuple[int, int, int]:
    """Return ``in_shape`` as a tuple (C, H, W); H and W must be at least ``least``."""
    check_count(who, "num_classes", num_classes)
    shape = _as_tuple(in_shape)
    if len(shape) != 3 or not all(_is_count(n) for n in shape) or min(shape[1:]) < least:
        expected = "three positive integers (C, H, W)" + (f", H and W at least {least}" if least > 1 else "")
        raise ValueError(f"{who}: in_shape must be {expected}, got {in_shape!r}")
    return shape[0], shape[1], shape[2]


def check_features(who: str, num_classes: int, in_shape: Sequence[int]) -> int:
    """Return how many numbers an input has, that of an image (C, H, W) or of a row (F,)."""
    if len(shape := _as_tuple(in_shape)) == 1:
        check_count(who, "num_classes", num_classes)
        check_count(who, "the entry of in_shape", shape[0])
        return shape[0]
    return math.prod(check_task(who, num_classes, in_shape))


def check_count(who: str, what: str, value: int) -> None:
    """Refuse a value that is not a positive integer."""
    if not _is_count(value):
        raise ValueError(f"{who}: {what} must be a positive integer, got {value!r}")


def check_flag(who: str, what: str, value: bool) -> None:
    """Refuse a value that is not true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{who}: {what} must be true or false, got {value!r}")


def outputs(who: str, num_classes: int, one_logit: bool) -> int:
    """Return the number of outputs: one per class, or one logit that tells two classes apart."""
    check_flag(who, "one_logit", one_logit)
    if one_logit and num_classes > 2:
        raise ValueError(f"{who}: one_logit tells two classes apart, got num_classes={num_classes}")
    return 1 if one_logit else num_classes


def choose(who: str, what: str, name: str, choices: Mapping[str, Choice]) -> Choice:
    """Return the choice of that name, or list the names there are."""
    if not isinstance(name, str) or name not in choices:
        raise ValueError(f"{who}: {what} must be one of {', '.join(choices)}; got {name!r}")
    return choices[name]


def _as_tuple(in_shape: object) -> tuple[int, ...]:
    return tuple(in_shape) if isinstance(in_shape, Sequence) and not isinstance(in_shape, str) else ()


def _is_count(value: object) -> bool:
    # True is an int in Python, and never a sensible count
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
