"""The user's training function as a `Trainer`: the function moves the model, we take the difference.

The function may also stop before its optimiser's step. The gradients that ``backward`` left are then the
update, for strategies that ask for gradients.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from flwr.app import Context
from torch import Tensor, nn

from fl_app.sketches import mask_coordinates
from fl_app.training import Job, LocalData, Trained, Trainer, parameters, state_buffers
from fl_app.types import Update
from fl_app.wire.messages import EXAMPLES, ConfigValue

Config = Mapping[str, ConfigValue]
"""The ``train_config`` of ``start``, with ``lr`` and ``server-round``."""
OwnFunction = Callable[[nn.Module, Context, Config], tuple[int, Mapping[str, float]]]
"""``train(model, context, config)`` or ``evaluate``: returns the number of samples and metrics."""

_MOST_SAMPLES = 1 << 53


def train_with(
    function: OwnFunction, context: Context, config: Config, *, gradient: bool, counted: Callable[[int], None]
) -> Trainer:
    """Make a trainer from ``function``; ``counted`` gets the number of samples.

    With ``gradient`` the update is a gradient: that of ``backward`` if the model did not move, else the
    change over ``-lr``.
    """

    def train(model: nn.Module, data: LocalData, job: Job) -> Trained:
        before = {name: p.detach() for name, p in parameters(model).items()}
        # whatever the function does to its model, the next client of this process gets the whole one
        own = copy.deepcopy(model)
        own.train()
        with torch.enable_grad(), _confined(parameters(own), job.rules.trained):
            samples, metrics = call(function, "train", own, context, config)
        counted(samples)
        own.to(next(iter(before.values())).device)  # the function may have used another device
        weights = _same_tensors(dict(own.named_parameters()), before, "parameters")
        if job.rules.trained is not None:
            _check_confined(weights, before, job.rules.trained)
        update = _update(weights, before, job.lr, gradient=gradient)
        beside = state_buffers(model)
        with torch.no_grad():
            for name, tensor in _same_tensors(dict(own.named_buffers()), beside, "buffers").items():
                beside[name].copy_(tensor)
        return Trained(
            update,
            samples=samples,
            steps=0 if gradient else 1,
            rate=1.0,
            loss=metrics.get("loss", math.nan),
            metrics=metrics | {EXAMPLES: float(samples)},
        )

    return train


def call(
    function: OwnFunction, what: str, model: nn.Module, context: Context, config: Config
) -> tuple[int, dict[str, float]]:
    """Call the user's function and check its return value; ``what`` names it in errors."""
    said = function(model, context, config)
    if not (isinstance(said, tuple) and len(said) == 2 and isinstance(said[1], Mapping)):
        came = f"{type(said).__name__} {said!r}"[:80]
        raise TypeError(f"{what} must return (number of samples, metrics by name), got {came}")
    try:
        samples = operator.index(said[0])
        metrics = {str(name): _number(value) for name, value in said[1].items()}
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must return (a whole number, numbers by name): {error}") from error
    if not 1 <= samples <= _MOST_SAMPLES:
        raise ValueError(f"{what} must return at least 1 sample, and at most 2**53, got {samples}")
    return samples, metrics


def _number(value: float | Tensor) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)


def _update(weights: Update, before: Update, lr: float, *, gradient: bool) -> Update:
    change = {name: p.detach() - before[name] for name, p in weights.items()}
    moved = any(bool(tensor.any()) for tensor in change.values())
    left = {name: p.grad.detach() for name, p in weights.items() if p.grad is not None}
    if not (moved or left or lr == 0):
        raise ValueError(
            "train neither moved the model nor left gradients: it must train the model that it is given"
        )
    if gradient and moved:
        return {name: tensor / -lr for name, tensor in change.items()}
    if gradient:
        return {name: left.get(name, tensor) for name, tensor in change.items()}
    if not moved and lr != 0 and any(bool(tensor.any()) for tensor in left.values()):
        raise ValueError(
            "train left gradients and did not move the model, and this strategy averages changes: "
            "step the optimiser, or use FedSGD or ADGP"
        )
    return change


def _same_tensors(own: Mapping[str, Tensor], like: Update, kind: str) -> Update:
    """Return the tensors of a trained model by the names of ``like``; refuse those of another model."""
    found = {name: own[name] for name in like if name in own}
    other = [
        name
        for name, tensor in like.items()
        if name not in found or (found[name].shape, found[name].dtype) != (tensor.shape, tensor.dtype)
    ]
    if other:
        raise ValueError(
            f"train must leave the model's {kind} as they are named, shaped and typed: "
            f"{', '.join(other[:3])} changed"
        )
    return found


@contextmanager
def _confined(weights: Update, coordinates: Tensor | None) -> Iterator[None]:
    """Zero gradients outside of ``coordinates``: SGD and Adam do not change such entries."""
    if coordinates is None:
        yield
        return
    masks = mask_coordinates(coordinates, weights)

    def keep(mask: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda gradient: torch.where(mask.to(gradient.device), gradient, torch.zeros_like(gradient))

    handles = [p.register_hook(keep(masks[name])) for name, p in weights.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_confined(weights: Update, before: Update, coordinates: Tensor) -> None:
    for name, mask in mask_coordinates(coordinates, weights).items():
        if bool(((weights[name].detach() != before[name]) & ~mask.to(before[name].device)).any()):
            raise ValueError(
                f"train moved {name} outside of the coordinates that this strategy trains: "
                "train without weight decay, and without writing to the weights"
            )
