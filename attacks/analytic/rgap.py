"""Layer-by-layer solution for the image, from the output back (R-GAP, Zhu and Blaschko, ICLR 2021).

In a chain without biases, the output layer's gradient and weights give the error signal and
that layer's input; each layer before it then has two blocks of linear equations for its own
input, from its weights and from its gradient, and the activation between two layers is undone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.analytic.chain import Link, PremiseError, as_chain, undo
from attacks.analytic.convolution_system import MOST_UNKNOWNS, Solution, convolution_system, pull_back
from attacks.analytic.first_linear import refusal
from attacks.base import Reconstruction, SolvedLayer, StepListener
from attacks.knowledge import travelled
from attacks.optimisation.problem import Problem, as_problem
from fl_app.types import Observation

WHO = "rgap"
TURN = 1.2784645427610738
"""Minimiser of ``-u / (1 + e^u)``, beyond which the function takes the same values again."""
DISAGREEMENT = 1e-3
"""Largest accepted disagreement of one layer's equations."""
TINY, TRIES = 1e-5, 8
"""Outputs below this part of their root mean square may have either sign; maximum number tried."""


class Output(NamedTuple):
    """Facts read off the output layer's gradient."""

    input: Tensor
    signal: Tensor
    """Derivative of the loss by each logit."""
    label: int
    notes: tuple[str, ...]
    residual: float = 0.0


class SolvedChain(NamedTuple):
    """All layers, from the output to the first; the last one's input is the image as the model sees it."""

    layers: tuple[SolvedLayer, ...]
    label: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RGap:
    """Solve for the input of one sample from its exact gradient, for a chain without biases.

    One logit is read as the logistic loss of a binary label (1: the logit is to be large, 0
    or -1: small), several as cross-entropy. A broken premise is refused with the reason;
    a layer whose equations leave its input open is reported with its rank.
    """

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update."""
        problem = as_problem(obs, who=WHO)
        try:
            solved = solve_chain(obs, problem, on_step)
        except PremiseError as error:
            return refusal(problem, str(error))
        inputs = solved.layers[-1].input.view(1, *problem.input_shape)
        pixels = problem.to_pixels(inputs.to(problem.mean)).clamp(0, 1)
        return Reconstruction(
            images=pixels,
            labels=torch.tensor([solved.label], device=problem.device),
            objective=_distance(obs, problem, inputs, solved.label),
            notes=(*problem.notes, *solved.notes, *(str(layer) for layer in solved.layers)),
            layers=solved.layers,
        )


rgap = RGap


def solve_chain(
    obs: Observation, problem: Problem | None = None, on_step: StepListener | None = None
) -> SolvedChain:
    """Return the recovered input of every layer; raise `PremiseError` where the attack does not apply."""
    problem = problem or as_problem(obs, who=WHO)
    links = as_chain(_exact_model(obs), problem.input_shape)
    gradients = _gradients(obs, problem, links)
    output, notes = _read_output(links, gradients, obs.labels)
    weight = links[-1].layer.weight
    layers = [SolvedLayer(links[-1].name, output.input, weight.shape[1], 1.0, output.residual)]
    signal = output.signal
    for index in range(len(links) - 2, -1, -1):
        solution, signal = _step_back(links, index, layers[-1].input, signal, gradients)
        layers.append(SolvedLayer(links[index].name, *solution))
        if on_step is not None:
            on_step(len(layers), len(links), max(layer.residual for layer in layers))
    return SolvedChain(tuple(layers), output.label, (*output.notes, *notes, *_verdict(layers)))


def margin_of(total: float) -> float:
    """Return the ``u`` up to `TURN` with ``-u / (1 + e^u) = total``, by bisection.

    ``total`` is the sum of gradient times weight over the output layer, ``u`` the label's
    sign times the logit.
    """
    return _bisect(lambda u: _total(u) - total, TURN, -1 - 2 * max(total, 0.0))


def _exact_model(obs: Observation) -> nn.Module:
    """Return a copy of the client's model for float64 on the CPU, in the client's mode."""
    return copy.deepcopy(obs.model).double().cpu().train(bool(obs.training)).requires_grad_(False)


def _gradients(obs: Observation, problem: Problem, links: Sequence[Link]) -> dict[str, Tensor]:
    """Return each weight's gradient in float64; refuse an update that is not a gradient of one sample."""
    if problem.batch_size != 1:
        raise PremiseError(f"the equations are those of one sample, the batch has {problem.batch_size}")
    if obs.local_steps not in (None, 1):
        raise PremiseError(f"the update is the sum of {obs.local_steps} local steps at different weights")
    names = [link.name for link in links]
    if missing := [name for name in names if name not in problem.names]:
        raise PremiseError(f"the update has no {', '.join(missing)}")
    for name in names:
        sent = travelled(obs, name).flatten(1)
        # an input that is zero leaves a whole column of zeros; a single zero was pruned
        if held_back := int((~sent & sent.any(dim=0)).sum()):
            raise PremiseError(f"{held_back} of {sent.numel()} entries of {name} were not sent")
        if not obs.update[name].any():
            raise PremiseError(f"every entry of {name} is zero")
    for link in links:
        if isinstance(link.layer, nn.Conv2d) and link.in_shape.numel() > MOST_UNKNOWNS:
            raise PremiseError(
                f"the input of {link.name} must have at most {MOST_UNKNOWNS} numbers, whose equations take "
                f"{8e-9 * MOST_UNKNOWNS**2:.2f} GB; got {link.in_shape.numel()}, "
                f"{'x'.join(map(str, link.in_shape))}"
            )
    parts = dict(zip(problem.names, problem.target.double().cpu().split(problem.sizes), strict=True))
    return {link.name: parts[link.name].view_as(link.layer.weight) for link in links}


def _step_back(
    links: Sequence[Link], index: int, following: Tensor, signal: Tensor, gradients: Mapping[str, Tensor]
) -> tuple[Solution, Tensor]:
    """Return a link's solved input and its error signal, from the input and the signal of the next.

    Rounding may flip the sign of an output near zero, which gives a wrong slope. If the equations
    disagree, such outputs are tried with the other sign.
    """
    link, back = links[index], _pull_back(links[index + 1], signal)
    solution, signal = _solve_link(link, following, back, gradients[link.name])
    size = following.abs().flatten()
    for doubtful in (size < TINY * size.square().mean().sqrt()).nonzero()[:TRIES]:
        if solution.residual < DISAGREEMENT or not link.activations:
            break
        turned = following.clone()
        turned.view(-1)[doubtful] *= -1
        other, other_signal = _solve_link(link, turned, back, gradients[link.name])
        if other.residual < solution.residual:
            following, solution, signal = turned, other, other_signal
    return solution, signal


def _pull_back(link: Link, signal: Tensor) -> Tensor:
    """Return the derivative of the loss by a link's input, from that by its output."""
    if isinstance(link.layer, nn.Linear):
        return link.layer.weight.t() @ signal
    return pull_back(link.layer, link.in_shape, signal)


def _solve_link(link: Link, following: Tensor, back: Tensor, gradient: Tensor) -> tuple[Solution, Tensor]:
    out, slope = undo(link, following)
    signal = back.reshape(link.out_shape) * slope
    if isinstance(link.layer, nn.Linear):
        return _solve_linear(link.layer.weight, out, gradient, signal), signal
    return convolution_system(link.layer, link.in_shape, signal).solve(out, gradient), signal


def _solve_linear(weight: Tensor, out: Tensor, gradient: Tensor, signal: Tensor) -> Solution:
    """Return the input whose product with the error signal is the gradient: these equations suffice."""
    x = gradient.t() @ signal / signal.square().sum().clamp_min(1e-300)
    blocks = ((torch.outer(signal, x), gradient), (weight @ x, out))
    residual = max(float((got - given).norm() / given.norm()) for got, given in blocks)
    return Solution(x, len(x) if signal.any() else 0, 1.0, residual)


def _read_output(
    links: Sequence[Link], gradients: Mapping[str, Tensor], labels: Tensor | None
) -> tuple[Output, list[str]]:
    weight, gradient = links[-1].layer.weight, gradients[links[-1].name]
    if len(weight) > 2:
        output = _softmax_output(weight, gradient)
        if labels is None or int(labels[0]) == output.label:
            return output, ["label inferred: its row alone goes down"]
        return output, [f"label {int(labels[0])} was granted, but the row that goes down is {output.label}"]
    if labels is not None:
        return _logistic_output(weight, gradient, positive=bool(labels[0] > 0)), ["labels granted"]
    both = [_logistic_output(weight, gradient, positive=positive) for positive in (True, False)]
    if len(links) == 1:
        return both[0], ["the label is a guess: with the other one the image is the negative"]
    # the wrong sign puts the activations on their wrong side, and the equations disagree
    doubts = [
        _step_back(links, len(links) - 2, each.input, each.signal, gradients)[0].residual for each in both
    ]
    better = min(range(2), key=lambda i: doubts[i])
    least, other = sorted(doubts)
    return both[better], [f"label inferred: equations disagree by {least:.1e}, with the other by {other:.1e}"]


def _logistic_output(weight: Tensor, gradient: Tensor, *, positive: bool) -> Output:
    """Read one logit, or two: their cross-entropy is the logistic loss of their difference.

    Symbols of the paper: ``y`` = ±1, ``u`` = y times the logit, ``k`` = the loss's derivative by it.
    """
    sign = torch.tensor([1.0] if len(weight) == 1 else [-1.0, 1.0], dtype=weight.dtype)
    w, g = sign @ weight, sign @ gradient / len(weight)
    total = float(g @ w)
    u, y = margin_of(total), 1.0 if positive else -1.0
    k = -y / (1 + math.exp(u))
    notes = [f"{'one logit: logistic loss' if len(weight) == 1 else 'cross-entropy'} assumed"]
    if total < _total(TURN) - 1e-9:
        notes.append(f"no margin gives the output layer's sum {total:.4g}: not this loss, or not one sample")
    elif total < 0:
        twin = _bisect(lambda v: _total(v) - total, TURN, 800.0)
        factor = (1 + math.exp(min(twin, 700.0))) / (1 + math.exp(u))
        notes.append(
            f"margin {u:.4g} taken; {twin:.4g} has the same gradient there, with inputs {factor:.3g} as large"
        )
    off = float((torch.outer(sign, g) - gradient).norm() / gradient.norm())
    return Output(g / k, k * sign, int(positive), tuple(notes), off)


def _softmax_output(weight: Tensor, gradient: Tensor) -> Output:
    """Read three logits or more: one unknown factor between error signal and input, found by bisection.

    The gradient is the error signal times the input. With ``a`` the signal over its largest
    entry, that of the label (it is minus the sum of the others), the signal is ``a / t`` and
    the input ``t v``; the label's probability at the logits ``t W v`` is then ``1 - 1 / t``.
    """
    row = gradient[gradient.square().sum(dim=1).argmax()]
    a = gradient @ row
    label = int(a.abs().argmax())
    a = -a / a[label]
    v = gradient.t() @ a / a.square().sum()
    if abs(float(a.sum())) > DISAGREEMENT * len(a):
        raise PremiseError("the output layer's rows do not sum to zero: not the cross-entropy of one sample")
    logits = weight @ v

    def excess(s: float) -> float:
        # of the label's error, at t = 1 + e^s
        t = 1 + math.exp(s)
        others = torch.cat([logits[:label], logits[label + 1 :]])
        return math.log(t) + float((t * others).logsumexp(0) - (t * logits).logsumexp(0))

    def mismatch(s: float) -> float:
        t = 1 + math.exp(s)
        target = F.one_hot(torch.tensor(label), len(logits))
        return float(((t * logits).softmax(0) - target - a / t).norm() * t / a.norm())

    grid = torch.linspace(-30, 30, 601).tolist()
    values = [excess(s) for s in grid]
    roots = [
        _bisect(excess, *sorted((low, high), key=excess))
        for low, high, left, right in zip(grid, grid[1:], values, values[1:], strict=False)
        if (left < 0) != (right < 0)
    ]
    s = min(roots or [grid[max(range(len(grid)), key=values.__getitem__)]], key=mismatch)
    t = 1 + math.exp(s)
    off = max(mismatch(s), float((torch.outer(a, v) - gradient).norm() / gradient.norm()))
    return Output(t * v, a / t, label, ("cross-entropy assumed",), off)


def _total(u: float) -> float:
    return -u / (1 + math.exp(u)) if u < 700 else 0.0


def _bisect(function: Callable[[float], float], below: float, above: float) -> float:
    """Return the zero of ``function`` between a point where it is negative and one where it is positive."""
    while True:
        middle = (below + above) / 2
        if middle in (below, above):
            return middle
        if function(middle) < 0:
            below = middle
        else:
            above = middle


def _verdict(layers: Sequence[SolvedLayer]) -> list[str]:
    first = next((i for i, layer in enumerate(layers) if not layer.determined), None)
    # behind an input that is one of many, the equations disagree in any case
    sound = layers if first is None else layers[: first + 1]
    worst = max(sound, key=lambda layer: layer.residual)
    notes = []
    if worst.residual > DISAGREEMENT:
        notes.append(
            f"the equations of {worst.name} disagree by {worst.residual:.1e}: "
            "not one sample, not the assumed loss, or a defended update"
        )
    if first is not None:
        notes.append(
            f"rank-deficient at {layers[first].name}: from there on the inputs are one choice of many"
        )
    return notes


def _distance(obs: Observation, problem: Problem, inputs: Tensor, label: int) -> float:
    """Return the relative distance between the observed gradient and that of the recovered input."""
    model = _exact_model(obs).requires_grad_(True)
    parameters = dict(model.named_parameters())
    logits = model(inputs)
    if logits.shape[1] == 1:
        loss = F.softplus(-logits if label else logits).sum()
    else:
        loss = F.cross_entropy(logits, torch.tensor([label]))
    got = torch.autograd.grad(loss, [parameters[name] for name in problem.names])
    target = problem.target.double().cpu()
    return float((torch.cat([g.flatten() for g in got]) - target).norm() / target.norm())
