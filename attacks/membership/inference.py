"""Membership inference: scores of candidates by loss, gradient alignment, RMIA and LiRA."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.base import MEMBERS, MemberScores, StepListener
from attacks.membership.alignment import gradient_alignment
from attacks.membership.ascent import ascended
from attacks.membership.references import lira, rmia
from attacks.membership.signals import log_odds, logits_of, losses, model_inputs
from fl_app.types import Inquiry, Manipulated, Observation, Records


@dataclass(frozen=True)
class InferMembers:
    """Score each candidate; a larger score says that it is likelier a member.

    ``shadows`` is the number of reference models that a run trains for the attack, in pairs that halve the
    candidates; 0: none, and neither RMIA nor LiRA. ``ascent`` is the distance, relative to the model's norm,
    that an ``active`` server moves the model up the candidates' loss before a client gets it.
    """

    candidates: int = 100
    shadows: int = 4
    active: bool = False
    ascent: float = 0.1
    adaptive: bool = True
    gamma: float = 1.0
    seed: int = 0

    infers: ClassVar[str] = MEMBERS

    def __post_init__(self) -> None:
        """Refuse settings that ask nothing."""
        if self.candidates < 4:
            raise ValueError(f"membership: candidates must be at least 4, got {self.candidates}")
        if self.shadows < 0 or self.shadows % 2:
            raise ValueError(
                f"membership: shadows come in pairs: expected an even number, got {self.shadows}"
            )
        if not (self.ascent > 0 and self.gamma > 0):
            raise ValueError(
                f"membership: ascent and gamma must be above 0, got {self.ascent} and {self.gamma}"
            )

    def __call__(self, inquiry: Inquiry, *, on_step: StepListener | None = None) -> MemberScores:
        """Return one tensor of scores (N,) for each statistic that the attacker's knowledge allows."""
        total = len(inquiry.rounds) + 1
        scores, notes = self._losses(inquiry), []

        def after(done: int) -> None:
            if on_step is not None:
                on_step(done, total, 0.0)

        if inquiry.rounds:
            scores |= gradient_alignment(inquiry, adaptive=self.adaptive, after_round=after)
        if inquiry.shadows:
            scores |= self._references(inquiry)
        after(total)
        flat = [name for name, values in scores.items() if not bool(values.isfinite().all())]
        for name in flat:
            scores[name] = torch.nan_to_num(scores[name], nan=0.0, posinf=1e30, neginf=-1e30)
            notes.append(f"{name}: scores that are not finite count as the lowest, the highest or 0")
        return MemberScores(scores, notes)

    def manipulate(
        self, model: nn.Module, candidates: Records, mean: Sequence[float], std: Sequence[float]
    ) -> Manipulated:
        """Return the model that an active server sends."""
        inputs = model_inputs(candidates.inputs, mean, std, model)
        return ascended(model, inputs, candidates.labels, distance=self.ascent)

    def _losses(self, inquiry: Inquiry) -> dict[str, Tensor]:
        """Return ``loss``, the mean over the trained models, and ``loss_drop``, the mean gain of a round."""

        def loss(model: nn.Module) -> Tensor:
            inputs = model_inputs(inquiry.candidates.inputs, inquiry.mean, inquiry.std, model)
            return losses(logits_of(model, inputs), inquiry.candidates.labels)

        after = [loss(_after(seen)) for seen in inquiry.rounds]
        found = {"loss": -torch.stack([*after, loss(inquiry.final)]).mean(dim=0)}
        if inquiry.rounds:
            before = torch.stack([loss(seen.model) for seen in inquiry.rounds])
            found["loss_drop"] = (before - torch.stack(after)).mean(dim=0)
        return found

    def _references(self, inquiry: Inquiry) -> dict[str, Tensor]:
        members = torch.stack([shadow.members.bool().cpu() for shadow in inquiry.shadows])
        models = [inquiry.final, *(shadow.model for shadow in inquiry.shadows)]

        def logits(records: Records) -> list[Tensor]:
            inputs = (model_inputs(records.inputs, inquiry.mean, inquiry.std, model) for model in models)
            return [logits_of(model, one) for model, one in zip(models, inputs, strict=True)]

        labels = inquiry.candidates.labels
        own = logits(inquiry.candidates)
        odds = [log_odds(one, labels) for one in own]
        found = {"lira": lira(odds[0], torch.stack(odds[1:]), members)}
        if inquiry.population is not None:
            public = [_likelihood(one, inquiry.population.labels) for one in logits(inquiry.population)]
            chances = [_likelihood(one, labels) for one in own]
            found["rmia"] = rmia(
                chances[0],
                torch.stack(chances[1:]),
                members,
                public[0],
                torch.stack(public[1:]),
                gamma=self.gamma,
            )
        return found


infer_members = InferMembers


def _after(seen: Observation) -> nn.Module:
    """Return the client's own model after its round: a gradient counts as one step."""
    trained = copy.deepcopy(seen.model)
    step = 1.0 if seen.local_steps else -(seen.lr or 1.0)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if name in seen.update:
                parameter.add_(step * seen.update[name])
    return trained


def _likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    return torch.exp(-losses(logits, labels))
