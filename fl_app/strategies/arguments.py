"""Arguments of strategies: a torch module, numbers, and the run that a config describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fl_app.models import ModelSpec
from fl_app.models.described import check_types
from fl_app.strategies.gate import ExpectedRelease
from fl_app.training.schedules import Schedule, constant


@dataclass(frozen=True)
class ConfiguredRun:
    """Run that a config describes to server and clients; clients without it follow their orders alone."""

    spec: ModelSpec
    """Model as named in orders."""
    facts: str = ""
    """Facts about the task, for clients with their own samples."""
    settings: str = ""
    """Hash of the settings that determine updates beside the orders; secure rounds compare it."""
    release: ExpectedRelease | None = None
    """Release that every update must match under record-level differential privacy."""


def check_module(who: str, model: object) -> None:
    """Refuse anything but a torch module whose tensors travel."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{who}: model must be a torch.nn.Module, got {_kind(model)}")
    check_types(who, model)


def schedule_of(who: str, lr: float | Schedule) -> Schedule:
    """Return a learning rate as a schedule."""
    if _is_number(lr):
        return constant(float(lr))  # type: ignore[arg-type]
    if not isinstance(lr, Callable):  # type: ignore[arg-type]
        raise TypeError(f"{who}: lr must be a number or a schedule, got {_kind(lr)}")
    return lr  # type: ignore[return-value]


def check_numbers(who: str, **values: object) -> None:
    """Refuse arguments that are neither numbers nor None."""
    for name, value in values.items():
        if value is not None and not _is_number(value):
            raise TypeError(f"{who}: {name} must be a number, got {_kind(value)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:80]
