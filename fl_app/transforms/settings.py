"""Checks of transform settings."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def check_strength(who: str, what: str, value: float) -> None:
    """Refuse anything but a finite number of at least 0."""
    if not (_is_number(value) and value >= 0):
        raise ValueError(f"{who}: {what} must be a finite number of at least 0, got {value!r}")


def check_bound(who: str, what: str, value: float) -> None:
    """Refuse anything but a finite number above 0."""
    if not (_is_number(value) and value > 0):
        raise ValueError(f"{who}: {what} must be a finite number above 0, got {value!r}")


def check_share(who: str, what: str, value: float) -> None:
    """Refuse anything but a number from 0 to 1."""
    if not (_is_number(value) and 0 <= value <= 1):
        raise ValueError(f"{who}: {what} must be in [0, 1], got {value!r}")


def check_rate(who: str, what: str, value: float) -> None:
    """Refuse anything but a number from 0 to below 1: something must be left."""
    if not (_is_number(value) and 0 <= value < 1):
        raise ValueError(f"{who}: {what} must be in [0, 1), got {value!r}")


def check_finite(who: str, tensor: Tensor) -> None:
    """Refuse a non-finite update instead of hiding it behind ordinary numbers."""
    if not torch.isfinite(tensor).all():
        raise ValueError(f"{who}: a tensor of shape {tuple(tensor.shape)} holds NaN or infinity")


def _is_number(value: object) -> bool:
    # a bool is an int to Python, but `std: true` in a config is a mistake
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
