"""Alignment of a candidate's gradient with what a client sent, pooled over rounds.

A member's gradient is a part of the update; a stranger's points that way only as far as all gradients do.
The centred form takes that common part away: the mean gradient of public records, from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.membership.decomposition import entries_to_explain, parts_of
from attacks.membership.signals import model_inputs, record_gradients
from fl_app.types import Inquiry, Observation, Trace

_LONGEST_WINDOW = 10
"""Rounds over which withheld entries are awaited, at most."""
_EXPLAINING = 100
"""Public records that help to explain an update, at most."""


def gradient_alignment(
    inquiry: Inquiry, *, adaptive: bool, after_round: Callable[[int], None] = lambda done: None
) -> dict[str, Tensor]:
    """Return ``alignment``, ``decomposition`` and, with public records, ``centred_alignment``.

    ``adaptive``: compare entries that were sent with those of the candidate alone, signs with signs; wait
    for what error feedback sends later; try public rewritings of images. Otherwise zeros count as sent.
    """
    known = inquiry.defense if adaptive else ()
    found: dict[str, list[Tensor]] = {}
    for number, seen in enumerate(inquiry.rounds):
        later = inquiry.rounds[number : number + _window(known)]
        for name, scores in _of_round(inquiry, seen, later, known, masked=adaptive).items():
            found.setdefault(name, []).append(scores)
        after_round(number + 1)
    # an update that was pruned to a few entries has no decomposition
    return {name: torch.stack(rounds).mean(dim=0) for name, rounds in found.items()}


def _of_round(
    inquiry: Inquiry, seen: Observation, later: Sequence[Observation], known: Sequence[Trace], *, masked: bool
) -> dict[str, Tensor]:
    names = [name for name, _ in seen.model.named_parameters() if name in seen.update]
    sent = torch.stack([_direction(one, names) for one in later]).sum(dim=0)
    mask = torch.stack([_mask(one, names) for one in later]).any(dim=0) if masked else torch.ones_like(sent)
    # later rounds hold other samples, which least squares would have to explain as well
    own = _direction(seen, names)
    background = _Background.of(inquiry, seen, names, entries_to_explain(own))
    versions = [inquiry.candidates.inputs]
    if masked:
        versions += [rewrite(versions[0]) for rewrite in inquiry.rewrites]
    signs = any(trace.signs for trace in known)
    found: dict[str, list[Tensor]] = {}
    for version in versions:
        inputs = model_inputs(version, inquiry.mean, inquiry.std, seen.model)
        gradients = record_gradients(seen.model, inputs, inquiry.candidates.labels, names)
        for name, scores in background.compare(
            gradients, own, sent, mask.to(sent), len(later), signs
        ).items():
            found.setdefault(name, []).append(scores)
    # the client trained on one version of each image: the closest one tells
    return {name: torch.stack(options).amax(dim=0).double().cpu() for name, options in found.items()}


@dataclass(frozen=True)
class _Background:
    """What public records have in common with every update of a round."""

    entries: Tensor
    mean: Tensor | None = None
    gradients: Tensor | None = None
    """Gradients of some of them at the entries to explain."""

    @classmethod
    def of(cls, inquiry: Inquiry, seen: Observation, names: Sequence[str], entries: Tensor) -> _Background:
        public = inquiry.population
        if public is None:
            return cls(entries)
        inputs = model_inputs(public.inputs, inquiry.mean, inquiry.std, seen.model)
        total, kept = torch.zeros(0), []
        for part in record_gradients(seen.model, inputs, public.labels, names):
            total = part.sum(dim=0) + (total if total.numel() else 0)
            kept.append(part[:, entries])
        return cls(entries, total / len(public), torch.cat(kept)[:_EXPLAINING])

    def compare(
        self, gradients: Iterable[Tensor], own: Tensor, sent: Tensor, mask: Tensor, rounds: int, signs: bool
    ) -> dict[str, Tensor]:
        """Return the scores of candidates by their gradients, which come a few at a time.

        ``own`` is the round's update, ``sent`` the sum over the ``rounds`` in which its entries leave.
        """
        plain, centred, kept = [], [], []
        for part in gradients:
            plain.append(_cosine((part.sign() if signs else part) * mask, sent))
            if self.mean is not None and not signs:
                away = (sent - rounds * self.mean) * mask
                centred.append(_cosine((part - self.mean) * mask, away))
            kept.append(part[:, self.entries])
        found = {"alignment": torch.cat(plain)}
        if centred:
            found["centred_alignment"] = torch.cat(centred)
        rows = torch.cat(kept)
        explaining = len(rows) + (0 if self.gradients is None else len(self.gradients))
        if len(self.entries) > explaining:
            found["decomposition"] = parts_of(own[self.entries], rows, self.gradients)
        return found


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
    lengths = (rows.norm(dim=1) * direction.norm()).clamp_min(1e-30)
    cosines: Tensor = rows @ direction / lengths
    return cosines
