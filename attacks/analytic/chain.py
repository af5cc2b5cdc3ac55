"""Models as chains: linear layers without biases, with invertible activations between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Undo = Callable[[Any, Tensor], tuple[Tensor, Tensor]]
"""From an activation and its output to its input and its slope there."""

EDGE = 1e-12
"""Smallest distance of a bounded activation's output from its bounds."""


class PremiseError(ValueError):
    """The attack cannot solve this model or update; the message says why."""


class Link(NamedTuple):
    """One linear map, and the activations up to the next."""

    name: str
    """Name of its weight."""
    layer: nn.Conv2d | nn.Linear
    in_shape: torch.Size
    out_shape: torch.Size
    """Shapes without the batch axis."""
    activations: tuple[nn.Module, ...]


def as_chain(model: nn.Module, in_shape: tuple[int, ...]) -> tuple[Link, ...]:
    """Return the links in the order of the forward pass; raise `PremiseError` if the model is not a chain."""
    links: list[Link] = []
    first = next(model.parameters(), torch.zeros(0))
    x = torch.zeros((1, *in_shape), dtype=first.dtype, device=first.device)
    seen: set[int] = set()
    for name, module in _modules(model, ""):
        shape = x.shape[1:]
        if isinstance(module, nn.Conv2d | nn.Linear):
            _check_layer(name, module, shape)
            if id(module.weight) in seen:
                raise PremiseError(f"{name}: its weight is used twice, and the gradient is a sum")
            seen.add(id(module.weight))
            x = module(x).detach()
            links.append(Link(f"{name}.weight", module, shape, x.shape[1:], ()))
            continue
        if type(module) in INVERTIBLE:
            if not links:
                raise PremiseError(f"{name} comes before the first layer")
            _check_activation(name, module)
            links[-1] = links[-1]._replace(activations=(*links[-1].activations, module))
        elif not isinstance(module, nn.Flatten) or module.start_dim != 1 or module.end_dim != -1:
            raise PremiseError(f"{name} {_why_not(module)}")
        x = module(x).detach()
    if not links or not isinstance(links[-1].layer, nn.Linear) or links[-1].activations:
        raise PremiseError("the model must end in a linear layer")
    return tuple(links)


def undo(link: Link, output: Tensor) -> tuple[Tensor, Tensor]:
    """Return the linear map's output and the activations' slope there, from the input of the next link."""
    value, slope = output.reshape(link.out_shape), torch.ones_like(output).reshape(link.out_shape)
    for activation in reversed(link.activations):
        value, more = INVERTIBLE[type(activation)](activation, value)
        slope = slope * more
    return value, slope


def _modules(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the leaves of nested `nn.Sequential`, except those without effect."""
    # by type: a subclass may have a forward pass of its own
    if type(module) is nn.Sequential:
        # not named_children, which skips a repeated module
        for name, child in module._modules.items():
            yield from _modules(child, f"{path}.{name}".lstrip("."))
        return
    idle = isinstance(module, nn.modules.dropout._DropoutNd) and (module.p == 0 or not module.training)
    if not idle and not isinstance(module, nn.Identity):
        yield path or "the model", module


def _check_layer(name: str, layer: nn.Conv2d | nn.Linear, shape: torch.Size) -> None:
    if layer.bias is not None:
        raise PremiseError(f"{name} has a bias: what it adds to the output is not in the equations")
    if isinstance(layer, nn.Linear):
        if len(shape) != 1:
            raise PremiseError(f"{name} is applied to {tuple(shape)}, not to one row")
        return
    if layer.groups != 1:
        raise PremiseError(f"{name} has {layer.groups} groups of channels")
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise PremiseError(f"{name} pads by {layer.padding!r} with {layer.padding_mode}, not with zeros")


def _check_activation(name: str, activation: nn.Module) -> None:
    factor = getattr(activation, "negative_slope", getattr(activation, "alpha", 1.0))
    if not factor > 0:
        raise PremiseError(f"{name} has slope {factor} below zero: it cannot be undone")


def _why_not(module: nn.Module) -> str:
    kind = type(module).__name__
    if isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm):
        return f"is a {kind}: its output is no linear function of its input"
    if "Pool" in kind:
        return f"is a {kind}: pooling cannot be undone"
    if not list(module.children()) and not list(module.parameters()):
        return f"is a {kind}: it cannot be undone; {', '.join(t.__name__ for t in INVERTIBLE)} can"
    return f"is a {kind}: not a layer of a chain (a skip connection, say)"


def _undo_leaky_relu(activation: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    slope = torch.where(y > 0, torch.ones_like(y), activation.negative_slope)
    return y / slope, slope


def _undo_elu(activation: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    alpha = activation.alpha
    low = y.clamp(alpha * (EDGE - 1), 0)
    return torch.where(y > 0, y, (low / alpha).log1p()), torch.where(y > 0, 1.0, low + alpha)


def _undo_sigmoid(activation: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    y = y.clamp(EDGE, 1 - EDGE)
    return y.logit(), y * (1 - y)


def _undo_tanh(activation: Any, y: Tensor) -> tuple[Tensor, Tensor]:
    y = y.clamp(EDGE - 1, 1 - EDGE)
    return y.atanh(), 1 - y.square()


INVERTIBLE: Mapping[type[nn.Module], Undo] = {
    nn.LeakyReLU: _undo_leaky_relu,
    nn.ELU: _undo_elu,
    nn.Sigmoid: _undo_sigmoid,
    nn.Tanh: _undo_tanh,
}
