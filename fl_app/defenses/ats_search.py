"""Policy search of ATS: draw random policies, keep those that still train, pick the most private."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fl_app.console.progress import track
from fl_app.data import normalise
from fl_app.defenses.ats_scores import accuracy_score, privacy_score
from fl_app.defenses.operations import LIBRARY, follow
from fl_app.training import LocalData, parameters

LENGTH = 3
"""Number of operations in a policy, as published."""

Policy = tuple[int, ...]


class Judge(NamedTuple):
    """Scores of a policy for the search; the empty policy is the untransformed data."""

    accuracy: Callable[[Policy], float]
    privacy: Callable[[Policy], float]


@dataclass(frozen=True)
class Scored:
    """A policy with its scores: S_acc is better when higher, S_pri when lower."""

    policy: Policy
    accuracy: float
    privacy: float


@dataclass(frozen=True)
class Found:
    """Result of a search."""

    picked: tuple[Scored, ...]
    accepted: tuple[Scored, ...]
    """All policies that reach ``least_accuracy``, the most private first."""
    least_accuracy: float
    untransformed: Scored


def search_policies(
    judge: Judge, *, candidates: int, keep: int, margin: float, generator: torch.Generator
) -> Found:
    """Draw ``candidates`` policies and pick the ``keep`` most private ones that still train.

    A policy counts as trainable if its S_acc is at most ``margin`` worse than that of
    the untransformed data. The published threshold is absolute (-85), but S_acc grows
    with the number of images and depends on model and data; a relative one carries over.
    S_acc is by far the cheaper score, so S_pri is computed only for trainable policies.
    """
    for name, count in (("candidates", candidates), ("keep", keep)):
        if count < 1:
            raise ValueError(f"search_policies: {name} must be at least 1, got {count}")
    if not (math.isfinite(margin) and margin >= 0):
        raise ValueError(f"search_policies: margin must be a finite number of at least 0, got {margin}")
    untransformed = Scored((), judge.accuracy(()), judge.privacy(()))
    least = untransformed.accuracy - margin * abs(untransformed.accuracy)
    accepted = []
    with track("policies", candidates) as advance:
        for i, policy in enumerate(draw_policies(candidates, generator), start=1):
            accuracy = judge.accuracy(policy)
            if math.isfinite(accuracy) and accuracy >= least:
                accepted.append(Scored(policy, accuracy, judge.privacy(policy)))
            advance(i, f"{len(accepted)} accepted")
    if len(accepted) < keep:
        raise ValueError(
            f"search_policies: {len(accepted)} of {candidates} policies reach an S_acc of {least:.1f}, "
            f"{keep} are wanted; draw more candidates or allow a margin above {margin}"
        )
    accepted.sort(key=lambda scored: scored.privacy)
    return Found(tuple(accepted[:keep]), tuple(accepted), least, untransformed)


def draw_policies(count: int, generator: torch.Generator) -> list[Policy]:
    """Draw ``count`` different policies; a policy may repeat an operation."""
    possible = len(LIBRARY) ** LENGTH
    if count > possible:
        raise ValueError(f"draw_policies: there are {possible} policies, got a count of {count}")
    drawn: dict[Policy, None] = {}
    while len(drawn) < count:
        numbers = torch.randint(len(LIBRARY), (LENGTH,), generator=generator, device="cpu")
        drawn[tuple(numbers.tolist())] = None
    return list(drawn)


def judge_with(
    data: LocalData,
    *,
    trained: nn.Module,
    untrained: nn.Module,
    images: int,
    jacobians: int,
    generator: torch.Generator,
) -> Judge:
    """Score policies on the first samples of ``data``: S_pri on ``images`` of them, S_acc on ``jacobians``.

    S_pri uses the ``trained`` model, S_acc the ``untrained`` one. All policies get the
    same images and the same noise, so their scores are comparable.
    """
    for name, count, least in (("images", images, 1), ("jacobians", jacobians, 2)):
        if not least <= count <= len(data):
            raise ValueError(f"judge_with: {name} must be in {least}..{len(data)}, got {count}")
    first = next(iter(parameters(trained).values()))
    batch = data.batch(torch.arange(max(images, jacobians), device="cpu"), first.device, first.dtype)
    shape = batch.pixels[:images].shape
    noise = torch.rand(shape, generator=generator, dtype=first.dtype, device="cpu").to(first.device)

    def inputs(pixels: Tensor) -> Tensor:
        return normalise(pixels, data.mean, data.std)

    def accuracy(policy: Policy) -> float:
        return accuracy_score(untrained.eval(), inputs(follow(policy, batch.pixels[:jacobians])))

    def privacy(policy: Policy) -> float:
        transformed = inputs(follow(policy, batch.pixels[:images]))
        return privacy_score(trained.eval(), transformed, batch.labels[:images], inputs(noise))

    return Judge(accuracy, privacy)
