"""The gradient that a client would have sent for guessed inputs, for many guesses at once.

Independent guesses (restarts, other clients of the round) share the weights, so
`torch.func.vmap` runs them in one graph: on small models the time goes into calling
operators, and one call then serves every guess.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from attacks.optimisation.local_training import LocalTraining

Loss = Callable[[Tensor, Tensor], Tensor]
Gradient = Callable[[Tensor, Tensor], Tensor]
"""From inputs (P, B, ...) and labels (P, B) or (P, B, classes) to gradients (P, n), differentiable."""


def client_gradient(
    model: nn.Module,
    names: tuple[str, ...],
    inputs: Tensor,
    labels: Tensor,
    loss: Loss = F.cross_entropy,
    local: LocalTraining | None = None,
) -> tuple[Gradient, str | None]:
    """Return a gradient function for stacks like ``inputs``, and why it is not batched (None if it is).

    With ``local`` the gradient is the mean one of a client's local steps, with the
    weights moving in between. A single guess needs no batching. Otherwise two of the
    given ones are tried both ways: operators without a batching rule, or with a wrong
    one, show only when called.
    """
    single = one_by_one(model, names, loss) if local is None else _in_turn(model, names, loss, local)
    if len(inputs) == 1:
        return single, None
    stacked = batched(model, names, loss, local)
    try:
        together, alone = _slope(stacked, inputs, labels), _slope(single, inputs, labels)
        # a model that draws numbers disagrees with itself as well
        wrong = not _agree(together, alone) and _agree(alone, _slope(single, inputs, labels))
        reason = "torch differentiates it wrongly when batched" if wrong else None
    except RuntimeError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    if reason is not None:
        return single, f"guesses run one by one, for the model cannot be batched: {reason}"
    return stacked, None


def one_by_one(model: nn.Module, names: tuple[str, ...], loss: Loss = F.cross_entropy) -> Gradient:
    """Return the gradient function that takes its guesses in turn."""
    parameters = dict(model.named_parameters())
    matched = [parameters[name] for name in names]

    def gradient(inputs: Tensor, labels: Tensor) -> Tensor:
        rows = []
        for guess, label in zip(inputs, labels, strict=True):
            value = loss(model(guess), label)
            parts = torch.autograd.grad(value, matched, create_graph=True, materialize_grads=True)
            rows.append(torch.cat([part.reshape(-1) for part in parts]))
        return torch.stack(rows)

    return gradient


def batched(
    model: nn.Module,
    names: tuple[str, ...],
    loss: Loss = F.cross_entropy,
    local: LocalTraining | None = None,
) -> Gradient:
    """Return the gradient function that takes all its guesses in one graph."""
    matched, of_guess = _functional(model, names, loss, local)
    # models that draw (a stochastic bottleneck) draw for each guess anew
    per_guess = vmap(of_guess, in_dims=(None, 0, 0), randomness="different")

    def gradient(inputs: Tensor, labels: Tensor) -> Tensor:
        parts = per_guess(matched, inputs, labels)
        return torch.cat([parts[name].flatten(1) for name in names], dim=1)

    return gradient


def _in_turn(model: nn.Module, names: tuple[str, ...], loss: Loss, local: LocalTraining) -> Gradient:
    matched, of_guess = _functional(model, names, loss, local)

    def gradient(inputs: Tensor, labels: Tensor) -> Tensor:
        rows = []
        for guess, label in zip(inputs, labels, strict=True):
            parts = of_guess(matched, guess, label)
            rows.append(torch.cat([parts[name].reshape(-1) for name in names]))
        return torch.stack(rows)

    return gradient


def _functional(
    model: nn.Module, names: tuple[str, ...], loss: Loss, local: LocalTraining | None
) -> tuple[dict[str, Tensor], Callable[[dict[str, Tensor], Tensor, Tensor], dict[str, Tensor]]]:
    """Return the matched weights, and the gradient by name as a function of them and of one guess."""
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    matched = {name: parameters[name] for name in names}
    rest = {name: parameter for name, parameter in parameters.items() if name not in matched}

    def value(weights: dict[str, Tensor], guess: Tensor, label: Tensor) -> Tensor:
        return loss(functional_call(model, {**rest, **weights}, (guess,)), label)

    slope = grad(value)
    if local is None:
        return matched, slope

    def mean_slope(weights: dict[str, Tensor], guess: Tensor, label: Tensor) -> dict[str, Tensor]:
        total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for start, end in local.parts:
            moved = {name: weight - local.lr * total[name] for name, weight in weights.items()}
            step = slope(moved, guess[start:end], label[start:end])
            total = {name: total[name] + step[name] for name in total}
        return {name: gradients / len(local.parts) for name, gradients in total.items()}

    return matched, mean_slope


def _slope(gradient: Gradient, inputs: Tensor, labels: Tensor) -> Tensor:
    guess = inputs[:2].detach().requires_grad_(True)
    flat = gradient(guess, labels[:2])
    # random weights: in the sum of squares some errors nearly cancel
    generator = torch.Generator(device="cpu").manual_seed(0)
    weights = torch.randn(flat.shape, generator=generator, dtype=flat.dtype, device="cpu")
    return torch.autograd.grad((flat * weights.to(flat.device)).sum(), guess)[0]


def _agree(a: Tensor, b: Tensor) -> bool:
    # rounding stays near 1e-6 even in a ResNet18; the known wrong rule is off by 1e-2
    return bool((a - b).norm() <= 1e-3 * b.norm())
