"""Size of a model, computed before any memory is allocated for it.

Settings of a model may come from the network. It is built on torch's meta device first, where
tensors have a shape and no memory, and every parameter and buffer is counted as it is registered:
too many of them end it at once, however many more would have come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

MOST_ENTRIES = 1 << 28
"""Most parameters and buffers of a model that a config from the network names: 1 GiB in float32."""
MOST_TENSORS = 1 << 12
"""They cost memory and time of their own, however small they are."""
_DRAWS = (nn.init.normal_, Tensor.normal_)


class TooLarge(ValueError):
    """A model with more entries, or in more tensors, than it may have."""


class _NoDraws(TorchFunctionMode):
    """Skips normal draws: on the meta device they draw nothing, and take seconds to find that out."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        return next(iter((*args, *given.values()))) if func in _DRAWS else func(*args, **given)


@contextmanager
def at_most(entries: int) -> Iterator[Callable[[], int]]:
    """Within, refuse to register more parameters and buffers than that; yields how many there are by now."""
    total = tensors = 0

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal total, tensors
        if tensor is None:
            return
        total, tensors = total + tensor.numel(), tensors + 1
        if total > entries:
            raise TooLarge(f"the model may have {entries} entries, and already has {total}")
        if tensors > MOST_TENSORS:
            raise TooLarge(f"the model may have {MOST_TENSORS} tensors, and already has {tensors}")

    hooks = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ]
    try:
        yield lambda: total
    finally:
        for hook in hooks:
            hook.remove()


def measure(build: Callable[[], nn.Module], entries: int) -> int:
    """Return how many entries the model has that ``build`` makes; more than ``entries`` are `TooLarge`."""
    with at_most(entries) as count, torch.device("meta"), _NoDraws():
        build()
        return count()
