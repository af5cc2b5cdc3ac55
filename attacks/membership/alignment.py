"""Alignment of a candidate's gradient with what a client sent, pooled over rounds.

A member's gradient is a part of the update; a stranger's points that way only as far as all gradients do.
The centred form takes that common part away: the mean gradient of public records, from both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from attacks.membership.signals import mean_gradient, model_inputs, record_gradients
from fl_app.types import Inquiry, Observation, Trace

_LONGEST_WINDOW = 10
"""Rounds over which withheld entries are awaited, at most."""


def gradient_alignment(
    inquiry: Inquiry, *, adaptive: bool, after_round: Callable[[int], None] = lambda done: None
) -> dict[str, Tensor]:
    """Return ``alignment`` and, with public records, ``centred_alignment`` of each candidate.

    ``adaptive``: compare entries that were sent with those of the candidate alone, signs with signs; wait
    for what error feedback sends later; try public rewritings of images. Otherwise zeros count as sent.
    """
    known = inquiry.defense if adaptive else ()
    sums: dict[str, Tensor] = {}
    for number, seen in enumerate(inquiry.rounds):
        later = inquiry.rounds[number : number + _window(known)]
        for name, scores in _of_round(inquiry, seen, later, known, masked=adaptive).items():
            sums[name] = sums.get(name, torch.zeros_like(scores)) + scores
        after_round(number + 1)
    return {name: total / len(inquiry.rounds) for name, total in sums.items()}


def _of_round(
    inquiry: Inquiry, seen: Observation, later: Sequence[Observation], known: Sequence[Trace], *, masked: bool
) -> dict[str, Tensor]:
    names = [name for name, _ in seen.model.named_parameters() if name in seen.update]
    sent = torch.stack([_direction(one, names) for one in later]).sum(dim=0)
    mask = torch.stack([_mask(one, names) for one in later]).any(dim=0) if masked else torch.ones_like(sent)
    mask = mask.to(sent)
    signs = any(trace.signs for trace in known)
    common = None
    if inquiry.population is not None and not signs:
        shown = model_inputs(inquiry.population.inputs, inquiry.mean, inquiry.std, seen.model)
        common = mean_gradient(seen.model, inquiry.population, shown, names)
    versions = [inquiry.candidates.inputs]
    if masked:
        versions += [rewrite(versions[0]) for rewrite in inquiry.rewrites]
    found: dict[str, list[Tensor]] = {}
    for version in versions:
        inputs = model_inputs(version, inquiry.mean, inquiry.std, seen.model)
        parts: dict[str, list[Tensor]] = {}
        for gradients in record_gradients(seen.model, inputs, inquiry.candidates.labels, names):
            own = gradients.sign() if signs else gradients
            parts.setdefault("alignment", []).append(_cosine(own * mask, sent))
            if common is not None:
                parts.setdefault("centred_alignment", []).append(
                    _cosine((gradients - common) * mask, (sent - len(later) * common) * mask)
                )
        for name, pieces in parts.items():
            found.setdefault(name, []).append(torch.cat(pieces))
    # the client trained on one version of each image: the closest one tells
    return {name: torch.stack(options).amax(dim=0).double().cpu() for name, options in found.items()}


def _direction(seen: Observation, names: Sequence[str]) -> Tensor:
    """Return the update as a gradient; of local steps, their mean gradient."""
    flat = torch.cat([seen.update[name].flatten() for name in names])
    if seen.local_steps is None:
        return flat
    return -flat / ((seen.lr or 1.0) * seen.local_steps)


def _mask(seen: Observation, names: Sequence[str]) -> Tensor:
    sent = seen.locations or seen.sent
    if sent is None:
        return torch.cat([(seen.update[name] != 0).flatten() for name in names])
    return torch.cat([sent[name].bool().flatten() for name in names])


def _window(known: Sequence[Trace]) -> int:
    """Return the number of rounds in which the entries of one gradient leave the client."""
    shares = [trace.kept for trace in known if trace.feedback and trace.kept]
    feedback = any(trace.feedback for trace in known)
    return min(_LONGEST_WINDOW, round(1 / min(shares)) if shares else 5 if feedback else 1)


def _cosine(rows: Tensor, direction: Tensor) -> Tensor:
    return (rows @ direction) / (rows.norm(dim=1) * direction.norm()).clamp_min(1e-30)
