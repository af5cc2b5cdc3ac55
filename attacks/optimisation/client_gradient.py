"""Gradients that a client would have sent for guessed inputs, for many guesses at once.

Independent guesses (restarts, other clients of the round) share the weights, so
`torch.func.vmap` runs them in one graph: on small models the time goes into calling
operators, and one call then serves every guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.optimisation.between import PLACE, RATE, Between
from attacks.optimisation.local_training import LocalTraining
from attacks.rounds.course import Rounds, carried

Loss = Callable[[Tensor, Tensor], Tensor]
Draws = Mapping[str, Tensor]
"""Draws of stochastic layers: by buffer name, (P, ...)."""
Course = LocalTraining | Rounds | Between | None
"""Movement of the weights while the client computes; None: they do not move."""
State = Mapping[str, Tensor]


class Gradient(Protocol):
    """Differentiable function from guesses to gradients (P, n)."""

    def __call__(self, inputs: Tensor, labels: Tensor, draws: Draws, trained: Tensor | None = None) -> Tensor:
        """Take inputs (P, B, ...), labels (P, B) or (P, B, classes), draws, and the trained entries (P, n).

        A client of FL-TOP trains only some entries: the others have a gradient of 0 in every step and
        do not move. Each guess has its own mask, because clients of a round may differ. None: all
        are trained.
        """
        ...


def client_gradient(
    model: nn.Module,
    names: tuple[str, ...],
    inputs: Tensor,
    labels: Tensor,
    draws: Draws | None = None,
    loss: Loss = F.cross_entropy,
    course: Course = None,
    trained: Tensor | None = None,
) -> tuple[Gradient, str | None]:
    """Return a gradient function for stacks like ``inputs``, and why it is not batched (None if it is).

    The ``course`` of a client's local steps gives their mean gradient, with the weights moving
    in between; that of several rounds gives those of all rounds in one row. A single guess needs
    no batching. Otherwise two of the given ones are tried both ways: operators without a
    batching rule, or with a wrong one, show only when called.
    """
    draws = draws or {}
    plain = course is None and not draws
    single = one_by_one(model, names, loss) if plain else _in_turn(model, names, loss, course)
    if len(inputs) == 1:
        return single, None
    stacked = batched(model, names, loss, course)
    slope_of = partial(_slope, inputs=inputs, labels=labels, draws=draws, trained=trained)
    try:
        together, alone = slope_of(stacked), slope_of(single)
        # a model that draws numbers disagrees with itself as well
        wrong = not _agree(together, alone) and _agree(alone, slope_of(single))
        reason = "torch differentiates it wrongly when batched" if wrong else None
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    if reason is not None:
        return single, f"guesses run one by one, for the model cannot be batched: {reason}"
    return stacked, None


def one_by_one(model: nn.Module, names: tuple[str, ...], loss: Loss = F.cross_entropy) -> Gradient:
    """Return the gradient function that processes guesses one by one."""
    parameters = dict(model.named_parameters())
    matched = [parameters[name] for name in names]

    def gradient(inputs: Tensor, labels: Tensor, draws: Draws, trained: Tensor | None = None) -> Tensor:
        rows = []
        for guess, label in zip(inputs, labels, strict=True):
            value = loss(model(guess), label)
            parts = torch.autograd.grad(value, matched, create_graph=True, materialize_grads=True)
            rows.append(torch.cat([part.reshape(-1) for part in parts]))
        return _at(trained, torch.stack(rows))

    return gradient


def batched(
    model: nn.Module,
    names: tuple[str, ...],
    loss: Loss = F.cross_entropy,
    course: Course = None,
) -> Gradient:
    """Return the gradient function that processes all guesses in one graph."""
    of_guess = _functional(model, names, loss, course)
    # models that draw (a stochastic bottleneck) draw for each guess anew
    per_guess = vmap(of_guess, randomness="different")

    def gradient(inputs: Tensor, labels: Tensor, draws: Draws, trained: Tensor | None = None) -> Tensor:
        own = () if trained is None else (trained,)
        return per_guess(inputs, labels, dict(draws), *own)

    return gradient


def _in_turn(model: nn.Module, names: tuple[str, ...], loss: Loss, course: Course) -> Gradient:
    of_guess = _functional(model, names, loss, course)

    def gradient(inputs: Tensor, labels: Tensor, draws: Draws, trained: Tensor | None = None) -> Tensor:
        rows = []
        for number, (guess, label) in enumerate(zip(inputs, labels, strict=True)):
            drawn = {name: numbers[number] for name, numbers in draws.items()}
            rows.append(of_guess(guess, label, drawn, None if trained is None else trained[number]))
        return torch.stack(rows)

    return gradient


def _functional(
    model: nn.Module, names: tuple[str, ...], loss: Loss, course: Course
) -> Callable[..., Tensor]:
    """Return the flat gradient as a function of one guess, with the arguments of `Gradient`."""
    own = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def value(weights: State, rest: State, guess: Tensor, label: Tensor, draws: Draws) -> Tensor:
        return loss(functional_call(model, {**rest, **weights, **draws}, (guess,)), label)

    slope = grad(value)

    def flat_slope(
        state: State, guess: Tensor, label: Tensor, draws: Draws, trained: Tensor | None = None
    ) -> Tensor:
        matched = {name: state[name] for name in names}
        rest = {name: tensor for name, tensor in state.items() if name not in matched}
        return _at(trained, _flat(slope(matched, rest, guess, label, draws), names))

    def of_local_steps(
        local: LocalTraining, guess: Tensor, label: Tensor, draws: Draws, trained: Tensor | None = None
    ) -> Tensor:
        sizes = [own[name].numel() for name in names]
        total = torch.zeros_like(_flat(own, names))
        for start, end in local.parts:
            drawn = {name: numbers[start:end] for name, numbers in draws.items()}
            moves = zip(names, (local.lr * total).split(sizes), strict=True)
            moved = {**own, **{name: own[name] - move.view(own[name].shape) for name, move in moves}}
            total = total + flat_slope(moved, guess[start:end], label[start:end], drawn, trained)
        return total / len(local.parts)

    def of_rounds(
        rounds: Rounds, guess: Tensor, label: Tensor, draws: Draws, trained: Tensor | None = None
    ) -> Tensor:
        slopes = []
        for number, state in enumerate(rounds.states):
            own = rounds.of(number, len(guess))
            slopes.append(flat_slope(state, guess[own], label[own], draws, trained))
        return carried(torch.stack(slopes), rounds.memory, causal=rounds.causal).flatten()

    def at_between(
        way: Between, guess: Tensor, label: Tensor, draws: Draws, trained: Tensor | None = None
    ) -> Tensor:
        place = RATE * draws[PLACE]
        moved = {**own, **{name: own[name] + place * way.delta[name] for name in names}}
        rest = {name: numbers for name, numbers in draws.items() if name != PLACE}
        return flat_slope(moved, guess, label, rest, trained)

    if isinstance(course, LocalTraining):
        return partial(of_local_steps, course)
    if isinstance(course, Between):
        return partial(at_between, course)
    return partial(flat_slope, own) if course is None else partial(of_rounds, course)


def _flat(tensors: State, names: tuple[str, ...]) -> Tensor:
    return torch.cat([tensors[name].reshape(-1) for name in names])


def _at(trained: Tensor | None, gradient: Tensor) -> Tensor:
    return gradient if trained is None else gradient * trained


def _slope(
    gradient: Gradient, inputs: Tensor, labels: Tensor, draws: Draws, trained: Tensor | None
) -> Tensor:
    guess = inputs[:2].detach().requires_grad_(True)
    drawn = {name: numbers[:2] for name, numbers in draws.items()}
    flat = gradient(guess, labels[:2], drawn, None if trained is None else trained[:2])
    # random weights: in the sum of squares some errors nearly cancel
    generator = torch.Generator(device="cpu").manual_seed(0)
    weights = torch.randn(flat.shape, generator=generator, dtype=flat.dtype, device="cpu")
    return torch.autograd.grad((flat * weights.to(flat.device)).sum(), guess)[0]


def _agree(a: Tensor, b: Tensor) -> bool:
    # rounding stays near 1e-6 even in a ResNet18; the known wrong rule is off by 1e-2
    return bool((a - b).norm() <= 1e-3 * b.norm())
