"""Rehearsal: an attacker tries its settings on images of its own before it attacks.

It knows the model and has images, so it can compute their updates as the client does, defend them if it
knows the defense, attack them, and compare what it finds with what it had. It looks at nothing of the client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from attacks.base import Reconstruction
from attacks.metrics import match, ssim
from attacks.optimisation.own_updates import own_updates
from attacks.optimisation.problem import as_problem
from fl_app.types import Known, Observation

ROUNDS = ((1 / 8, 3), (1 / 3, 1))
"""Share of the steps that every candidate takes, and the number of candidates that remain."""
FEWEST = 10
"""Steps of a rehearsal, at least."""

Attack = Callable[[Sequence[Observation]], Sequence[Reconstruction]]


@dataclass(frozen=True)
class Choice:
    """The candidate that did best in rehearsal, and by how much."""

    number: int
    score: float
    """Mean SSIM of its images in the last rehearsal."""


_CHOICES: WeakIdKeyDictionary = WeakIdKeyDictionary()
_SPLITS: WeakIdKeyDictionary = WeakIdKeyDictionary()


def set_apart(known: Known, count: int) -> tuple[Known, Known]:
    """Split images into those to learn from and ``count`` to rehearse on; the same images, the same split."""
    splits = _SPLITS.setdefault(known.images, {})
    if count not in splits:
        order = torch.randperm(len(known.images), generator=torch.Generator().manual_seed(0))
        splits[count] = tuple(Known(known.images[i], known.labels[i]) for i in (order[count:], order[:count]))
    first, second = splits[count]
    return first, second


def best_candidate(
    obs: Observation,
    attack_of: Callable[[int, int], Attack],
    candidates: int,
    *,
    steps: int,
    updates: int,
    who: str,
) -> Choice:
    """Return the candidate that recovers the attacker's own images best.

    ``attack_of(number, steps)`` is candidate ``number`` with so many steps; ``updates`` are rehearsed on.
    Each round drops the worse candidates. Rehearsals of one model, defense and set of images are done once.
    """
    if obs.known is None:
        raise ValueError(f"{who}: a rehearsal needs images of the attacker's own, got none")
    choices = _CHOICES.setdefault(obs.known.images, {})
    key = (who, candidates, steps, updates, _fingerprint(obs))
    if key not in choices:
        rehearsals = rehearsed(obs, updates, who=who)
        left, score = list(range(candidates)), 0.0
        for share, remain in ROUNDS:
            fewer = max(FEWEST, round(share * steps))
            scores = {number: _score(attack_of(number, fewer), rehearsals) for number in left}
            left = sorted(scores, key=lambda number: -scores[number])[:remain]
            score = scores[left[0]]
        choices[key] = Choice(left[0], score)
    choice: Choice = choices[key]
    return choice


def rehearsed(obs: Observation, updates: int, *, who: str) -> list[tuple[Observation, Tensor]]:
    """Return observations of updates that the attacker computed as the client does, with their images."""
    problem = as_problem(obs, who=who)
    size = problem.batch_size
    if obs.known is None or len(obs.known.images) < 2 * updates * size:
        raise ValueError(
            f"{who}: {updates} rehearsals of {size} images need twice as many of the attacker's own, "
            f"got {0 if obs.known is None else len(obs.known.images)}"
        )
    _, apart = set_apart(obs.known, updates * size)
    batches = list(zip(apart.images.split(size), apart.labels.split(size), strict=True))
    cases = []
    for update, (pixels, labels) in zip(own_updates(obs, problem, batches, who=who), batches, strict=True):
        seen = replace(
            obs,
            update=update,
            sent={name: entries != 0 for name, entries in update.items()},
            labels=labels.to(problem.device) if obs.labels is not None else None,
            batch_size=size,
            buffers=None,
            locations=None,
            broadcaster=None,
            history=(),
            round=1,
        )
        cases.append((seen, pixels))
    return cases


def _score(attack: Attack, rehearsals: list[tuple[Observation, Tensor]]) -> float:
    results = attack([seen for seen, _ in rehearsals])
    scores = []
    for result, (_, pixels) in zip(results, rehearsals, strict=True):
        found = result.images.to(pixels)
        scores.append(ssim(found[match(found, pixels)], pixels).mean())
    return float(torch.stack(scores).mean())


def _fingerprint(obs: Observation) -> str:
    """Return a hash of all of an observation that a rehearsal depends on."""
    facts = (
        obs.lr,
        obs.local_steps,
        obs.local_batch_size,
        obs.batch_size,
        obs.training,
        obs.defense,
        obs.mean,
        obs.std,
    )
    said = hashlib.blake2b(
        repr((*facts, obs.labels is None, obs.defend is None, obs.rehearse is None)).encode(), digest_size=16
    )
    for name, tensor in obs.model.state_dict().items():
        said.update(name.encode() + tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return said.hexdigest()
