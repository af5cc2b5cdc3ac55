"""Rows of a trapped layer, read from a pruned update.

A sample that alone activates one row also alone activates others, each with a different
error signal. Different pixels survive in these rows, and together they hold most of the picture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.active.fill_in import fill_in, largest_withheld
from attacks.active.level_votes import FEWEST, per_feature, signal_by_vote
from attacks.active.passage import LinearCall
from attacks.active.pruned_rows import Merged, merge_rows
from attacks.active.traps import SLACK, Rows
from attacks.knowledge import travelled
from attacks.optimisation.problem import Problem
from fl_app.types import Observation


def read_pruned_rows(obs: Observation, problem: Problem, call: LinearCall) -> Rows:
    """Read the groups of rows of which enough survives; fill in other pixels from their neighbours."""
    weight, bias = (
        obs.update[f"{call.name}.{part}"].detach().to(problem.device).double() for part in ("weight", "bias")
    )
    sent, bias_sent = (
        travelled(obs, f"{call.name}.{part}").to(problem.device) for part in ("weight", "bias")
    )
    mean, std = per_feature(problem)
    if call.sees_pixels:
        mean, std = torch.zeros_like(mean), torch.ones_like(std)
    most = largest_withheld(obs, f"{call.name}.weight").to(problem.device)
    weight, sent, most = (part[:, : len(mean)] for part in (weight, sent, most))
    active = (sent & (weight != 0)).any(dim=1) | (bias_sent & (bias != 0))
    single, images, shares, voted = torch.zeros_like(active), [], [], 0
    for merged in merge_rows(weight, sent):
        given = _sent_signal(merged, bias, bias_sent)
        signal = _signal(merged, mean, std, given)
        if signal is None:
            continue
        single[merged.rows], voted = True, voted + (given is None)
        shares.append(float(merged.known.double().mean()))
        images.append(_picture(merged, most, problem) / signal)
    pixels = call.pixels(torch.stack(images) if images else weight[:0], problem)
    notes = (
        f"adaptive: rows are merged that agree where both survive; {int(single.sum())} hold exactly one "
        f"sample and make {len(images)} images, {int((active & ~single).sum())} are mixed or too little of "
        "them survives",
        f"{voted} error signals were not sent and are voted on",
        *(
            [f"{min(shares):.0%} to {max(shares):.0%} of their pixels survive, the others are filled in"]
            if shares
            else []
        ),
    )
    labels = torch.full((len(images),), -1, device=weight.device)
    return Rows(active, single, True, pixels, labels, notes)


def _sent_signal(merged: Merged, bias: Tensor, sent: Tensor) -> float | None:
    """Return the error signal from the sent biases; None if none was sent."""
    there = sent[merged.rows] & (bias[merged.rows] != 0)
    factors, signals = merged.factors[there], bias[merged.rows][there]
    return float((factors @ signals) / (factors @ factors)) if there.any() else None


def _signal(merged: Merged, mean: Tensor, std: Tensor, given: float | None) -> float | None:
    """Return the error signal if its levels, or several agreeing rows, show that there is one sample."""
    values, shift, scale = merged.values[merged.known], mean[merged.known], std[merged.known]
    found = signal_by_vote(values, shift, scale, given=given)
    if found is not None or given is None or len(merged.rows) == 1 or len(values) < FEWEST:
        return found
    pixels = values / given * scale + shift
    return given if bool(((pixels > -SLACK) & (pixels < 1 + SLACK)).all()) else None


def _picture(merged: Merged, most: Tensor, problem: Problem) -> Tensor:
    """Return a group's values with guesses for missing ones, bounded most tightly by the largest row."""
    bound = (most[merged.rows] / merged.factors.abs()[:, None]).amin(dim=0)
    alone = merged.values[None], merged.known[None], bound[None], merged.values.new_ones(1)
    return fill_in(*alone, problem.input_shape)[0]
