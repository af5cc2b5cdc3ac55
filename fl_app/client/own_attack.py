"""Gate of a node: it attacks its own update before that leaves, and withholds one that gives samples away.

Cheap attacks come first: labels from the output layer, inputs from the first linear layer, then a search for
images until the time is up. The attacker of the gate is granted the labels and knows the defense.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fl_app.defenses import Defense
from fl_app.defenses.ats import public_rewrites
from fl_app.policy import OwnAttackLimits
from fl_app.training import LocalData
from fl_app.types import Observation, Truth, Update

logger = logging.getLogger(__name__)

_OTHERS = 99
_GIVES_UP = (ValueError, RuntimeError, IndexError, ArithmeticError, MemoryError)


@dataclass(frozen=True)
class OwnAttack:
    """Attacks by name, cheapest first, and the score; this package knows them only as callables."""

    attacks: Mapping[str, Callable[[float], Any]]
    """From the seconds that are left to an attack."""
    score: Callable[..., Mapping[str, Any]]
    num_classes: int
    training: bool

    def __call__(
        self,
        limits: OwnAttackLimits,
        *,
        model: nn.Module,
        update: Update,
        defense: Defense,
        data: LocalData,
        truth: Truth,
        lr: float,
        steps: int,
        who: str,
    ) -> str | None:
        """Return why an update must not leave; None: no attack came above a limit in its time."""
        start = time.monotonic()
        deadline = start + limits.seconds
        seen = self._observe(model, update, defense, data, truth, lr=lr, steps=steps)
        others = _others(data, truth)
        reason, tried = None, list[str]()
        for name, attack in self.attacks.items():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            tried.append(name)
            try:
                found = self.score(attack(left)(seen), truth, others=others)
            except _GIVES_UP as error:
                logger.debug("%s: own attack %s gave up: %s", who, name, error)
                continue
            reason = _exceeded(limits, name, found)
            if reason is not None:
                break
        spent = time.monotonic() - start
        logger.info("%s: own attacks %s in %.2f s: %s", who, ", ".join(tried), spent, reason or "may leave")
        return reason

    def _observe(
        self,
        model: nn.Module,
        update: Update,
        defense: Defense,
        data: LocalData,
        truth: Truth,
        *,
        lr: float,
        steps: int,
    ) -> Observation:
        return Observation(
            model=model,
            update=update,
            sent={name: tensor != 0 for name, tensor in update.items()},
            lr=lr,
            local_steps=steps or None,
            local_batch_size=len(truth.labels) if steps else None,
            batch_size=len(truth.labels),
            num_classes=self.num_classes,
            input_shape=tuple(truth.inputs.shape[1:]),
            mean=data.mean,
            std=data.std,
            defense=defense.traces,
            labels=truth.labels,
            training=self.training,
            rewrites=public_rewrites(defense.traces),
        )


def _others(data: LocalData, truth: Truth) -> Tensor | None:
    """Return other images of the node, among which a rebuilt one must point to its own."""
    if data.samples.inputs.dtype != torch.uint8:
        return None
    inputs = data.samples.inputs[:: max(1, len(data) // _OTHERS)][:_OTHERS].float() / 255
    same = torch.cdist(inputs.flatten(1), truth.inputs.float().flatten(1)).amin(dim=1) < 1e-4
    return inputs[~same] if bool((~same).any()) else None


def _exceeded(limits: OwnAttackLimits, name: str, found: Mapping[str, Any]) -> str | None:
    best = max((value for value in found.get("ssim") or () if value is not None), default=None)
    if best is not None and best >= limits.max_ssim:
        return f"{name} rebuilds a picture with SSIM {best:.2f}, and the limit is {limits.max_ssim:g}"
    asked = found.get("identified") or ()
    share = sum(map(bool, asked)) / len(asked) if asked else 0.0
    if limits.max_identified is not None and share > limits.max_identified:
        return f"{name} identifies {share:.0%} of the samples, and the limit is {limits.max_identified:.0%}"
    labels = found.get("labels") or {}
    if (
        limits.max_label_f1 is not None
        and "images" not in found
        and labels.get("f1", 0.0) > limits.max_label_f1
    ):
        return f"{name} names the labels with F1 {labels['f1']:.2f}, and the limit is {limits.max_label_f1:g}"
    return None
