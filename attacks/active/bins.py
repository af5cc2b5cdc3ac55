"""Contents of an imprint block's bins, from the differences of neighbouring rows."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from attacks.active.imprint_block import ImprintBlock
from attacks.active.level_votes import ROUGH, per_feature, signal_by_vote
from attacks.active.lone_samples import LEVELS, distinct, judge
from attacks.optimisation.problem import Problem
from fl_app.types import Observation

EMPTY = 100
"""Rows that differ by less, in units of rounding of the longest row, hold the same samples."""
SLACK = 1e-3
"""Tolerance for rounding: distance of a sample outside its bin, in bin widths, or outside [0, 1]."""

MOST_ROUNDED = 0.5
"""Largest relative change by rounding at which a signal is still searched for."""


@dataclasses.dataclass(frozen=True, eq=False)
class Bins:
    """Samples read off the rows of an imprint block."""

    inputs: Tensor
    """One input per bin (K, features), as the model sees it; not a number in bins without a signal."""
    occupied: Tensor
    single: Tensor
    """Masks of the bins (K,) that hold any sample, and exactly one."""
    decided: bool
    """Whether occupied bins that are not single are known to be mixtures."""
    shown: Tensor
    """Mask of the bins (K,) shown as images: single ones, or the strongest if undecided."""
    labels: Tensor
    """Labels of single samples (K,), -1 where unknown."""
    notes: tuple[str, ...]


def read_bins(obs: Observation, problem: Problem, path: str, block: ImprintBlock) -> Bins:
    """Read every bin of the named block from an unpruned update."""
    weight, bias = block_rows(obs, problem, path)
    vectors, signals = bin_sums(weight, bias)
    occupied = _lengths(vectors, signals) > _rounding(obs, path, weight, bias, block)
    divisible = occupied & (signals != 0)
    inputs = torch.where(divisible[:, None], vectors / signals[:, None], torch.nan)
    if obs.local_steps is not None:
        inputs, signals = _sharpened(obs, problem, path, block, vectors, signals, divisible)
    candidates = (occupied & _is_possible(inputs, obs, problem, block)).nonzero().flatten()
    if obs.local_steps is not None and obs.local_steps > 1:
        # rows drift apart: a sample also shows faintly in lower bins, where it is alone
        candidates = candidates[signals[candidates].abs().argsort(descending=True)]
        candidates = candidates[distinct(as_pixels(inputs[candidates], problem))]
    verdicts = judge(
        obs,
        problem,
        layer=f"{path}.rows",
        inputs=inputs[candidates],
        pixels=as_pixels(inputs[candidates], problem),
        rows=candidates,
        signals=signals[candidates],
        noise=bias.abs().max() / signals[candidates].abs(),
    )
    single, labels = torch.zeros_like(occupied), torch.full_like(occupied, -1, dtype=torch.long)
    single[candidates], labels[candidates] = verdicts.single, verdicts.labels
    rest, others = int((occupied & ~single).sum()), "are mixed" if verdicts.decided else "hold one or more"
    notes = (
        f"{len(bias)} bins: {int(single.sum())} hold exactly one sample, {rest} {others}, "
        f"{int((~occupied).sum())} are empty",
        *verdicts.notes,
        *_about_steps(obs, path, block, inputs[single if single.any() else divisible]),
    )
    shown = single if verdicts.decided else _strongest(vectors, divisible, obs.batch_size)
    return Bins(inputs, occupied, single, verdicts.decided, shown, labels, notes)


def _strongest(vectors: Tensor, divisible: Tensor, most: int | None) -> Tensor:
    """Return the bins (K,) with the longest vectors, at most ``most`` of the divisible ones; None: all."""
    chosen = divisible.clone()
    if most is not None and int(divisible.sum()) > most:
        lengths = torch.where(divisible, vectors.norm(dim=1), -1.0)
        chosen[:] = False
        chosen[lengths.topk(most).indices] = True
    return chosen


def block_rows(obs: Observation, problem: Problem, path: str) -> tuple[Tensor, Tensor]:
    """Return the update of the block's rows and biases in float64."""
    weight, bias = (obs.update[f"{path}.rows.{name}"].detach() for name in ("weight", "bias"))
    return weight.to(problem.device).double(), bias.to(problem.device).double()


def bin_sums(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``sum delta_s x_s`` (K, features) and ``sum delta_s`` (K,) over the samples of each bin.

    The topmost row is not differenced, because no edge lies above its own.
    """
    above, bias_above = torch.zeros_like(weight), torch.zeros_like(bias)
    above[:-1], bias_above[:-1] = weight[1:], bias[1:]
    return weight - above, bias - bias_above


def as_pixels(inputs: Tensor, problem: Problem) -> Tensor:
    """Convert flat inputs to flat pixels, in [0, 1] for photographs."""
    return problem.to_pixels(inputs.view(-1, *problem.input_shape)).flatten(1)


def _lengths(rows: Tensor, biases: Tensor) -> Tensor:
    lengths: Tensor = torch.cat([rows, biases[:, None]], dim=1).norm(dim=1)
    return lengths


def _rounding(obs: Observation, path: str, weight: Tensor, bias: Tensor, block: ImprintBlock) -> Tensor:
    """Return the largest difference that rounding can make between equal rows (K,)."""
    unit = torch.finfo(obs.update[f"{path}.rows.weight"].dtype).eps
    bound = (EMPTY * unit * _lengths(weight, bias).max()).expand(len(bias))
    if obs.local_steps is None:
        return bound
    # a delta is a difference of weights, which are rounded too
    started = _lengths(block.rows.weight.detach().double(), block.rows.bias.detach().double())
    return bound + 2 * unit * started.to(bound.device)


def _sharpened(
    obs: Observation,
    problem: Problem,
    path: str,
    block: ImprintBlock,
    vectors: Tensor,
    signals: Tensor,
    divisible: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the inputs and signals of a delta, corrected by the levels of photographs where possible.

    Its weights are rounded, and its biases even more, because they are larger. So the pixels vote
    on the signal and are then snapped to their levels.
    """
    inputs = torch.where(divisible[:, None], vectors / signals[:, None], torch.nan)
    signals, (mean, std) = signals.clone(), per_feature(problem)
    unit = torch.finfo(obs.update[f"{path}.rows.bias"].dtype).eps
    sizes = block.rows.bias.detach().double().abs().to(signals.device)
    rounding = (obs.local_steps or 1) * unit * (sizes + torch.cat([sizes[1:], sizes.new_zeros(1)]))
    for i in divisible.nonzero().flatten().tolist():
        within = min(float(rounding[i] / signals[i].abs()), MOST_ROUNDED)
        signal = signal_by_vote(vectors[i], mean, std, given=float(signals[i]), within=within, majority=ROUGH)
        if signal is not None:
            levels = (LEVELS * (vectors[i] / signal * std + mean)).round()
            inputs[i], signals[i] = (levels / LEVELS - mean) / std, signal
    return inputs, signals


def _is_possible(inputs: Tensor, obs: Observation, problem: Problem, block: ImprintBlock) -> Tensor:
    """Return the mask (K,) of inputs with valid pixels inside their bin; mixed signs of signals fail this."""
    pixels = as_pixels(inputs, problem)
    valid = ((pixels > -SLACK) & (pixels < 1 + SLACK)).all(dim=1)
    if obs.local_steps is not None and obs.local_steps > 1:  # the edges have moved
        return valid
    functional, edges = block.rows.weight[0].detach().double(), -block.rows.bias.detach().double()
    value = inputs @ functional
    ends = torch.cat([edges[1:], edges.new_full((1,), torch.inf)])
    # exclude both end bins: one is as wide as all others together, the other is unbounded
    slack = SLACK * edges[1:].diff().abs().max() if len(edges) > 2 else SLACK
    within: Tensor = (value > edges - slack) & (value < ends + slack)
    return valid & within


def _about_steps(obs: Observation, path: str, block: ImprintBlock, inputs: Tensor) -> list[str]:
    """Describe how far local steps moved the edges: a sample near an edge may be in two bins."""
    if obs.local_steps is None or obs.local_steps == 1 or not len(inputs):
        return []
    weight, bias = (obs.update[f"{path}.rows.{name}"].detach().double() for name in ("weight", "bias"))
    moved = (inputs.to(weight) @ weight.t() + bias).abs().median(dim=0).values
    widths = -block.rows.bias.detach().double().diff()
    share = (moved[1:-1] / widths[1:].abs()).median() if len(widths) > 1 else moved[0] / widths[0].abs()
    return [
        f"{obs.local_steps} local steps moved the edges by {float(share):.2g} of a bin width in the median"
    ]
