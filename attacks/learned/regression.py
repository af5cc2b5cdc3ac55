"""Learned attacker: a regression from defended updates to images, trained on images of the attacker's own.

After Learning To Invert (Wu et al., UAI 2023). The attacker knows the model and has public images. It
computes their updates as the client does, lets them go through the client's defense, whatever that is, and
learns to tell the image from what comes out. So it adapts to every defense without knowing how one is undone.
All of its examples have the victim's labels, read off the update or granted: only the images differ.

The regression is by kernels instead of the paper's network: it is exact in seconds on a processor, and
chooses its own settings by leaving examples out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attacks.base import Reconstruction, StepListener
from attacks.learned.features import features_of
from attacks.learned.kernel import fit
from attacks.optimisation.known_labels import SOURCES, known_labels
from attacks.optimisation.own_updates import own_updates
from attacks.optimisation.problem import as_problem
from attacks.priors import law_of
from fl_app.types import Observation

WHO = "learned"
FEWEST = 32
CODES = 256
"""Directions of the law of photographs that are learnt; finer ones are not told by so few examples."""


@dataclass(frozen=True, kw_only=True)
class Learned:
    """Recover a batch of images by regression on examples that went through the client's defense.

    ``examples`` updates are computed for each attack. Tensors of more than ``width`` entries are sketched.
    ``adaptive``: the attacker knows the defense; without, its examples are undefended.
    """

    examples: int = 1500
    width: int = 4096
    adaptive: bool = True
    labels: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.examples < FEWEST:
            raise ValueError(f"{WHO}: examples must be at least {FEWEST}, got {self.examples}")
        if self.width < 1:
            raise ValueError(f"{WHO}: width must be at least 1, got {self.width}")
        if self.labels not in SOURCES:
            raise ValueError(f"{WHO}: labels must be one of {SOURCES}, got {self.labels!r}")

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack one update."""
        problem = as_problem(obs, who=WHO)
        size = problem.batch_size
        have = 0 if obs.known is None else len(obs.known.images)
        if obs.known is None or have < FEWEST * size:
            raise ValueError(
                f"{WHO}: expected at least {FEWEST * size} images of the attacker's own, got {have}; "
                "attack.known_images=test, or Observation(known=...)"
            )
        labels, notes = known_labels(obs, problem, self.labels, who=WHO)
        count = min(self.examples, have // size)
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(have, generator=generator)[: count * size]
        # in the order of the labels: an image may stand for any of its batch
        pixels = obs.known.images[order].unflatten(0, (count, size))
        batches = [(one, labels.cpu()) for one in pixels]
        if on_step is not None:
            on_step(0, 2, float("inf"))
        knows = obs if self.adaptive else _undefended(obs)
        updates = own_updates(knows, problem, batches, who=WHO)
        if on_step is not None:
            on_step(1, 2, float("inf"))
        rows = features_of([*updates, obs.update], problem.names, self.width, self.seed)
        law = law_of(obs.known.images)
        used = min(CODES, len(law.basis))
        codes = law.codes(pixels)[..., :used]
        importance = law.basis[:used].square().sum(dim=1).repeat(size)
        model = fit(rows[:-1], codes.flatten(1), importance)
        found = torch.zeros(size, len(law.basis))
        found[:, :used] = model(rows[-1]).view(size, used).float()
        if on_step is not None:
            on_step(2, 2, model.error)
        images: Tensor = law.pixels(found).clamp(0, 1).to(problem.target)
        known = knows.defend is not None or knows.rehearse is not None
        defense = "through the client's defense" if known else "without a defense"
        return Reconstruction(
            images=images,
            labels=labels,
            objective=model.error,
            notes=(
                *problem.notes,
                *notes,
                f"learned from {count} updates of the attacker's own images, {defense}",
                f"left out, {1 - model.error:.0%} of the variance of its images is explained",
            ),
        )


learned = Learned


def _undefended(obs: Observation) -> Observation:
    return replace(obs, defend=None, rehearse=None)
