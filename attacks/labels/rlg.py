"""Labels of a batch by hyperplanes in the output layer's row space (RLG, Dang et al. 2021, Algorithm 1).

With softmax cross-entropy the gradient is ``sum_n g_n h_n``, and ``g_n`` is negative at the
label of sample ``n`` alone. As long as the features ``h_n`` are independent, each ``g_n`` is in
the space that the gradient's columns span, so that some direction of it is negative at that
class alone. No premise on the features' signs is needed, nor on how many steps were taken.

The published code is told the number of samples and does not scale rows: ``rank`` and ``scale_rows=False``
do the same here, and ``fallback=False`` leaves the answer to hyperplanes alone.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from attacks.base import NO_RULE, LabelAttack, LabelSet, StepListener
from attacks.labels.class_points import ClassPoints, class_points
from attacks.labels.counts import count_samples
from attacks.labels.feature_signs import features_above_zero
from attacks.labels.output_layer import OutputGradient, output_gradient, whole_bias
from attacks.labels.separation import separate
from attacks.labels.yin import lowest
from fl_app.types import Observation

WHO = "rlg"
HYPERPLANES, BIAS_SIGNS, ROW_SIGNS = "hyperplanes", "signs of the bias", "signs of the rows"
"""Values of `LabelSet.rule`."""


def rlg(
    rank: int | None = None,
    weight: str | None = None,
    counts: bool = True,
    fallback: bool = True,
    scale_rows: bool = True,
    longest: int | None = None,
) -> LabelAttack:
    """Recover the distinct labels of one or several steps; ``weight`` names the output layer's matrix.

    ``rank`` is the number of samples behind the update; None infers it. All labels of an
    exact gradient are found, and mostly nothing else: the condition is necessary (Remark 4), not sufficient.
    With ``fallback``, the signs of the bias or of the rows answer where hyperplanes cannot, which are
    not RLG's rule; without, there may be no answer. With ``counts`` it also says how many samples each class
    has, where that is clear. ``scale_rows`` divides each row by its expected rounding, which the
    paper does not do (see `class_points`). Only the classes of the ``longest`` points are judged, and
    against each other; None: all. The published code takes 199 others: of a rewritten gradient,
    short points are hardly more than the defense's error, and anywhere.
    """
    for name, number in (("rank", rank), ("longest", longest)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise ValueError(f"{WHO}: {name} must be an integer above 0 or None, got {number!r}")

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> LabelSet:
        gradient = _per_class(output_gradient(obs, weight, who=WHO), obs.num_classes)
        if not gradient.rows.isfinite().all():
            raise ValueError(f"{WHO}: {gradient.name} must be finite, got NaN or infinity in it")
        found = _recover(obs, gradient, rank, fallback=fallback, scale_rows=scale_rows, longest=longest)
        return found if counts else dataclasses.replace(found, counts=None)

    return attack


def _per_class(gradient: OutputGradient, classes: int | None) -> OutputGradient:
    """Transpose a matrix of (features, classes)."""
    height, width = gradient.rows.shape
    return gradient._replace(rows=gradient.rows.T) if height != classes == width else gradient


def _recover(
    obs: Observation,
    gradient: OutputGradient,
    given: int | None,
    *,
    fallback: bool,
    scale_rows: bool,
    longest: int | None,
) -> LabelSet:
    rows = gradient.rows.cpu()
    found = class_points(
        rows,
        weights=_started_from(obs, gradient),
        rank=given,
        samples=_most_samples(obs),
        scale_rows=scale_rows,
    )
    notes = [*gradient.notes, *found.notes]
    if given is not None:
        notes.append(f"rank {given} was given, not inferred")
    failed = _failed_premise(obs, rows, found.rank, len(found.classes))
    if failed is not None:
        notes.append(failed)
    if fallback and failed is not None:
        return _by_signs(obs, gradient, found.measured, notes)
    labels, unproven = _by_hyperplanes(found, longest)
    if len(labels) == 0:
        notes.append("no class can be separated from the others")
        if fallback:
            return _by_signs(obs, gradient, found.measured, notes)
        return LabelSet(labels=labels, rank=found.measured, notes=[*notes, "no answer"], rule=NO_RULE)
    if unproven:
        notes.append(f"{unproven} of the classes have a margin as small as rounding")
    if obs.batch_size is not None and obs.batch_size >= len(rows):
        notes.append(f"premise failed: {obs.batch_size} samples for {len(rows)} classes; some may be missing")
    if obs.batch_size is not None and obs.local_steps is None and len(labels) > obs.batch_size:
        notes.append(f"{len(labels)} classes for {obs.batch_size} samples: some are not in the batch")
    counts = count_samples(labels, _evidence(obs, gradient), obs.batch_size)
    return LabelSet(labels=labels, counts=counts, rank=found.measured, notes=notes, rule=HYPERPLANES)


def _by_hyperplanes(found: ClassPoints, longest: int | None) -> tuple[Tensor, int]:
    """Return the separable classes, the surest first, and the number of them without a proof."""
    if len(found.classes) == 0:
        return torch.zeros(0, dtype=torch.long), 0
    number = len(found.points) if longest is None else min(longest, len(found.points))
    judged = found.points.norm(dim=1).topk(number).indices.sort().values
    separation = separate(found.points[judged], found.accuracy)
    order = separation.margins[separation.parted].argsort(descending=True, stable=True)
    return found.classes[judged][separation.parted][order], separation.unproven


def _started_from(obs: Observation, gradient: OutputGradient) -> Tensor | None:
    """Return the weights whose rounding is in a difference of weights."""
    if obs.local_steps is None:
        return None
    weights = obs.model.get_parameter(gradient.name).detach().cpu()
    return weights if weights.shape == gradient.rows.shape else weights.T


def _most_samples(obs: Observation) -> int | None:
    """Return the largest number of samples behind the update, counting each step's separately."""
    if obs.batch_size is None or obs.local_steps is None:
        return obs.batch_size
    return obs.local_steps * min(obs.batch_size, obs.local_batch_size or obs.batch_size)


def _failed_premise(obs: Observation, rows: Tensor, rank: int, classes: int) -> str | None:
    if rank >= classes - 1:
        return f"premise failed: rank {rank} for {classes} classes, all of which can be separated"
    samples = obs.batch_size
    if obs.local_steps is None and samples is not None and rank == rows.shape[1] < samples:
        return f"premise failed: {samples} samples have only {rank} features each"
    return None


def _by_signs(obs: Observation, gradient: OutputGradient, rank: int, notes: list[str]) -> LabelSet:
    """Name the classes with a negative entry.

    That of the bias needs no premise on the features; of their many, one is below zero for more labels.
    """
    bias = None if features_above_zero(obs, gradient.name) else whole_bias(obs, gradient.name)
    rule, entries = (ROW_SIGNS, gradient.rows) if bias is None else (BIAS_SIGNS, bias[:, None])
    found = lowest(entries, obs.batch_size, [*notes, f"labels by the {rule}"])
    return dataclasses.replace(found, rank=rank, rule=rule)


def _evidence(obs: Observation, gradient: OutputGradient) -> Tensor:
    """Return a number per class, which each sample of the class lowers by about the same amount."""
    bias = whole_bias(obs, gradient.name)
    return (gradient.rows.double().sum(dim=1) if bias is None else bias.double()).cpu()
