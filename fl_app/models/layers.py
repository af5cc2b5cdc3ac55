"""Layers of a built model: found by name, and observed while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from torch import Tensor, nn


class Call(NamedTuple):
    """Input and output of a layer, with their graph."""

    input: Tensor
    output: Tensor


def linear_layer(model: nn.Module, name: str | None = None, *, who: str) -> tuple[str, nn.Linear]:
    """Return the linear layer of that name, or the model's last one, with its name."""
    layers = {path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not layers:
        raise ValueError(f"{who}: the model has no linear layer")
    chosen = list(layers)[-1] if name is None else name
    if chosen not in layers:
        raise ValueError(f"{who}: layer must be one of {', '.join(layers)}; got {name!r}")
    return chosen, layers[chosen]


@contextmanager
def watched(layer: nn.Module) -> Iterator[list[Call]]:
    """Note every call of ``layer`` for a while; nothing stays on the model."""
    calls: list[Call] = []
    handle = layer.register_forward_hook(lambda _, args, output: calls.append(Call(args[0], output)))
    try:
        yield calls
    finally:
        handle.remove()
