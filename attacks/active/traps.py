"""Contents of a trapped layer's rows: each weight gradient divided by its bias gradient."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from attacks.active.lone_samples import SAME, distinct, judge
from attacks.active.passage import LinearCall
from attacks.optimisation.problem import Problem
from fl_app.types import Observation

SILENT = 100
"""Rows whose bias moved by less, in units of rounding of the largest, hold no sample."""
SLACK = 1e-3
"""Largest distance outside [0, 1] that rounding may give a pixel."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Samples read off the rows of a trapped layer."""

    active: Tensor
    single: Tensor
    """Masks of the rows (M,) that hold any sample, and exactly one."""
    decided: bool
    """Whether active rows that are not single are known to be mixtures."""
    pixels: Tensor
    """The distinct images of single rows (K, features); of all active rows if nothing is decided."""
    labels: Tensor
    """Their labels (K,), -1 where unknown."""
    notes: tuple[str, ...]


def read_rows(obs: Observation, problem: Problem, call: LinearCall) -> Rows:
    """Read every row of an unpruned update."""
    weight, bias = (
        obs.update[f"{call.name}.{part}"].detach().to(problem.device).double() for part in ("weight", "bias")
    )
    rounding = torch.finfo(obs.update[f"{call.name}.bias"].dtype).eps
    active = bias.abs() > SILENT * rounding * bias.abs().max()
    rows = active.nonzero().flatten()
    pixels = call.pixels(weight[rows] / bias[rows, None], problem)
    valid = ((pixels > -SLACK) & (pixels < 1 + SLACK)).all(dim=1)
    rows, seen = rows[valid], pixels[valid]
    # one row for each image: rows that agree are replayed once
    unique = distinct(seen)
    inputs = problem.to_inputs(seen[unique].view(-1, *problem.input_shape)).flatten(1)
    verdicts = judge(
        obs,
        problem,
        layer=call.name,
        inputs=inputs,
        pixels=seen[unique],
        rows=rows[unique],
        signals=bias[rows[unique]],
        noise=bias.abs().max() / bias[rows[unique]].abs(),
    )
    images = seen[unique][verdicts.single]
    alone = _agree(seen, images)
    single = torch.zeros_like(active)
    single[rows[alone]] = True
    notes = (
        f"{len(bias)} rows: {int(single.sum())} hold exactly one sample, {len(images)} of them distinct; "
        f"{int((active & ~single).sum())} {'are mixed' if verdicts.decided else 'hold one or more'}, "
        f"{int((~active).sum())} are silent",
        *verdicts.notes,
    )
    if not verdicts.decided:
        return Rows(active, single, False, seen[unique], verdicts.labels, notes)
    return Rows(active, single, True, images, verdicts.labels[verdicts.single], notes)


def _agree(pixels: Tensor, images: Tensor) -> Tensor:
    found = torch.zeros(len(pixels), dtype=torch.bool, device=pixels.device)
    for image in images:
        found |= (pixels - image).square().mean(dim=1).sqrt() < SAME
    return found
