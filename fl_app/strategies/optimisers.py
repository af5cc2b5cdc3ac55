"""Server optimisers: pairs of pure functions that turn a mean gradient into the next weights.

The pair has the shape of a `Transform`: all state is passed in and returned, so a strategy keeps, saves
and restores it without knowing its content. Settings have Flower's names and defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fl_app.storage.tree_file import Tree
from fl_app.types import Update

OptimiserState = dict[str, Tree]
"""State of an optimiser: tensors by name, in any nesting that a `Tree` can hold."""


class Moment(NamedTuple):
    """Time of a step: the round, counted from 1, and the schedule's rate in it."""

    round: int
    lr: float


class ServerOptimiser(NamedTuple):
    """Two pure functions. All state is passed in and returned; closures hold none.

    ``init(weights) -> state`` and ``update(mean, state, weights, moment) -> (new_weights, state)``. The mean
    is a gradient: a strategy whose clients send changes passes their negated mean.
    """

    init: Callable[[Update], OptimiserState]
    update: Callable[[Update, OptimiserState, Update, Moment], tuple[Update, OptimiserState]]


def sgd(lr: float | None = None, momentum: float = 0.0, weight_decay: float = 0.0) -> ServerOptimiser:
    """Take a step of SGD with momentum and weight decay; ``lr=None`` takes the schedule's rate."""
    if lr is not None and not lr > 0:
        raise ValueError(f"sgd: lr must be positive, got {lr}")
    if not 0 <= momentum < 1:
        raise ValueError(f"sgd: momentum must be in [0, 1), got {momentum}")
    if weight_decay < 0:
        raise ValueError(f"sgd: weight_decay must be at least 0, got {weight_decay}")

    def init(weights: Update) -> OptimiserState:
        return {"velocity": {}}

    def update(
        mean: Update, state: OptimiserState, weights: Update, moment: Moment
    ) -> tuple[Update, OptimiserState]:
        rate = moment.lr if lr is None else lr
        if weight_decay:
            mean = {name: g + weight_decay * weights[name] for name, g in mean.items()}
        if momentum:
            # the first step is the gradient itself: adding it to 0 would turn -0.0 into 0.0
            old = state["velocity"]
            mean = {name: momentum * old[name] + g if old else g for name, g in mean.items()}
            state = {"velocity": mean}
        return {name: weight - rate * mean[name] for name, weight in weights.items()}, state

    return ServerOptimiser(init, update)


def adam(eta: float = 0.1, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3) -> ServerOptimiser:
    """FedAdam's step (Reddi et al., 2021), with Flower's bias correction of the first rounds."""
    _check_shares("adam", beta_1=beta_1, beta_2=beta_2)

    def rate(server_round: int) -> float:
        # one more than the rounds so far, as in Flower
        steps = server_round + 1.0
        return eta * math.sqrt(1 - math.pow(beta_2, steps)) / (1 - math.pow(beta_1, steps))

    return _adaptive(
        "adam", lambda v, square: beta_2 * v + (1 - beta_2) * square, rate, eta=eta, beta_1=beta_1, tau=tau
    )


def yogi(eta: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3) -> ServerOptimiser:
    """FedYogi's step (Reddi et al., 2021)."""
    _check_shares("yogi", beta_1=beta_1, beta_2=beta_2)

    def second(v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - beta_2) * square * torch.sign(v - square)

    return _adaptive("yogi", second, lambda server_round: eta, eta=eta, beta_1=beta_1, tau=tau)


def adagrad(eta: float = 0.1, tau: float = 1e-3) -> ServerOptimiser:
    """FedAdagrad's step (Reddi et al., 2021)."""
    return _adaptive(
        "adagrad", lambda v, square: v + square, lambda server_round: eta, eta=eta, beta_1=0.0, tau=tau
    )


def _adaptive(
    who: str,
    second: Callable[[Tensor, Tensor], Tensor],
    rate: Callable[[int], float],
    *,
    eta: float,
    beta_1: float,
    tau: float,
) -> ServerOptimiser:
    """Move against ``m / (sqrt(v) + tau)`` (Reddi et al., Algorithm 2).

    Their symbols: ``m`` is the first moment of the gradient ``g``, ``v`` becomes ``second(v, g^2)``.
    """
    for name, value in (("eta", eta), ("tau", tau)):
        if not value > 0:
            raise ValueError(f"{who}: {name} must be positive, got {value}")

    def init(weights: Update) -> OptimiserState:
        return {part: {name: torch.zeros_like(w) for name, w in weights.items()} for part in ("m", "v")}

    def update(
        mean: Update, state: OptimiserState, weights: Update, moment: Moment
    ) -> tuple[Update, OptimiserState]:
        m = {name: beta_1 * state["m"][name] + (1 - beta_1) * g for name, g in mean.items()}
        v = {name: second(state["v"][name], g**2) for name, g in mean.items()}
        step = rate(moment.round)
        moved = {name: w - step * m[name] / (v[name].sqrt() + tau) for name, w in weights.items()}
        return moved, {"m": m, "v": v}

    return ServerOptimiser(init, update)


def _check_shares(who: str, **shares: float) -> None:
    for name, value in shares.items():
        if not 0 <= value < 1:
            raise ValueError(f"{who}: {name} must be in [0, 1), got {value}")
