"""Rehearsal: an attacker tries its settings on images of its own before it attacks.

It knows the model and has images, so it can compute their updates as the client does, defend them if it
knows the defense, attack them, and compare what it finds with what it had. It looks at nothing of the client.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

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
LAST = 1 / 3
"""The same share for refinements of the one that remains, and for itself."""
FEWEST = 10
"""Steps of a rehearsal, at least."""
_OF_EVERY = (
    "steps",
    "restarts",
    "adaptive",
    "labels",
    "seed",
    "time_budget",
    "fedavg",
    "together",
    "trace",
    "rehearsals",
    "rehearsal_budget",
)


class Rehearsable(Protocol):
    """Attack that states the settings which it would try."""

    who: ClassVar[str]

    @property
    def steps(self) -> int: ...

    def options(self) -> list[Self]: ...

    def refinements(self) -> list[Self]: ...

    def search(self, observations: Sequence[Observation]) -> Sequence[Reconstruction]: ...


A = TypeVar("A", bound=Rehearsable)

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


def rehearse(attack: A, obs: Observation, *, updates: int, budget: float) -> tuple[A, float]:
    """Return the settings that recover the attacker's own images best, and their mean SSIM there.

    Every option is tried with few steps, the better ones with more, and the best one beside its
    refinements. ``updates`` are rehearsed on, with all together as many steps as ``budget`` attacks have.
    Rehearsals of one attack, model, defense and set of images are done once.
    """
    if obs.known is None:
        raise ValueError(f"{attack.who}: a rehearsal needs images of the attacker's own, got none")
    choices = _CHOICES.setdefault(obs.known.images, {})
    key = (repr(attack), updates, budget, _fingerprint(obs))
    if key not in choices:
        choices[key] = _best(attack, rehearsed(obs, updates, who=attack.who), budget)
    chosen, score = choices[key]
    return chosen, score


def _best(attack: A, cases: list[tuple[Observation, Tensor]], budget: float) -> tuple[A, float]:
    options, refined = attack.options(), len(attack.refinements())
    left, planned = len(options), (refined + 1) * LAST * len(cases)
    for share, remain in ROUNDS:
        planned += left * share * len(cases)
        left = remain
    fewer = min(1.0, budget / planned)

    def score(one: A, share: float) -> float:
        steps = max(FEWEST, round(fewer * share * attack.steps))
        changes: dict[str, Any] = {"steps": steps, "restarts": 1, "trace": 0, "time_budget": None}
        return _score(replace(one, **changes).search, cases)  # type: ignore[type-var]

    for share, remain in ROUNDS:
        scores = [score(one, share) for one in options]
        order = sorted(range(len(options)), key=lambda place: -scores[place])
        options = [options[place] for place in order[:remain]]
    options += options[0].refinements()
    scores = [score(one, LAST) for one in options]
    return options[scores.index(max(scores))], max(scores)


def differences_of(attack: Any) -> str:
    """Return the settings in which an attack differs from its defaults, but for those of every attack."""
    told = []
    for one in fields(attack):
        value = getattr(attack, one.name)
        if one.name not in _OF_EVERY and value != one.default:
            told.append(f"{one.name}={value:g}" if isinstance(value, float) else f"{one.name}={value}")
    return ", ".join(told) or "its own settings"


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


def _score(
    search: Callable[[Sequence[Observation]], Sequence[Reconstruction]],
    rehearsals: list[tuple[Observation, Tensor]],
) -> float:
    results = search([seen for seen, _ in rehearsals])
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
