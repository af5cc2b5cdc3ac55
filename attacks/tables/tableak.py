"""TabLeak (Vero et al., ICML 2023): rows of a table from an update.

Categories are one entry per value, which a search among numbers leaves anywhere between 0 and 1. So the
search moves logits, whose softmax is a share of each value. Rows have no prior that says which of several
solutions is likely; instead many searches from random starts are pooled: where they agree, they are right
more often, and the disagreement is told with the result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from attacks.base import Rows, StepListener
from attacks.metrics import match
from attacks.optimisation.known_labels import SOURCES, known_labels
from attacks.optimisation.matching import Recipe, match_gradients
from attacks.optimisation.objectives import cosine_distance
from attacks.optimisation.optimisers import Adam, Variables
from attacks.optimisation.problem import Problem, as_problem
from attacks.tables.columns import Columns
from fl_app.types import Observation

WHO = "tableak"
_INNER = "table"


@dataclass(frozen=True, kw_only=True)
class TabLeak:
    """Recover the rows behind an update by cosine distance and Adam, pooled over ``restarts`` searches.

    The better half of the searches by their own objective is pooled: numbers by the median, categories by
    the mean of the shares. An update of several local steps is matched as one step.
    """

    steps: int = 500
    restarts: int = 8
    lr: float = 0.06
    labels: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "restarts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{WHO}: {name} must be at least 1, got {getattr(self, name)}")
        if not self.lr > 0:
            raise ValueError(f"{WHO}: lr must be positive, got {self.lr}")
        if self.labels not in SOURCES:
            raise ValueError(f"{WHO}: labels must be one of {SOURCES}, got {self.labels!r}")

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Rows:
        """Attack one update."""
        if not obs.features:
            raise ValueError(f"{WHO}: expected the names of a row's entries (Observation.features), got none")
        columns = Columns.of(obs.features)
        seen = _as_images(obs, columns.width)
        problem = as_problem(seen, who=WHO)
        labels, notes = known_labels(seen, problem, self.labels, who=WHO)
        (solution,) = match_gradients(
            [problem],
            [labels],
            self._recipe(problem, columns),
            restarts=self.restarts,
            seed=self.seed,
            on_step=on_step,
        )
        order = solution.objective.argsort()[: max(1, (self.restarts + 1) // 2)]
        order = order[solution.objective[order].isfinite()]
        if not len(order):
            raise ValueError(f"{WHO}: no search had a finite objective")
        pooled = columns.relaxed(solution.variables["rows"][order]).detach()
        aligned = torch.stack([_like(rows, pooled[0]) for rows in pooled])
        rows, certainty = _agreed(aligned, columns)
        return Rows(
            values=rows,
            names=tuple(obs.features),
            certainty=certainty,
            labels=labels,
            objective=float(solution.objective[order[0]]),
            notes=(
                *problem.notes,
                *notes,
                *solution.notes,
                f"pooled {len(order)} of {self.restarts} searches, mean certainty {certainty.mean():.2f}",
            ),
        )

    def _recipe(self, problem: Problem, columns: Columns) -> Recipe:
        def draw(generator: torch.Generator) -> Variables:
            shape = (problem.batch_size, columns.width)
            return {"rows": torch.randn(shape, generator=generator, dtype=problem.target.dtype)}

        def decode(variables: Variables, labels: Tensor) -> tuple[Tensor, Tensor]:
            return columns.relaxed(variables["rows"])[..., None, None], labels

        return Recipe(
            draw=draw,
            decode=decode,
            matching=cosine_distance,
            optimiser=partial(Adam),
            schedule=lambda progress: self.lr * (1 - progress),
            steps=self.steps,
        )


tableak = TabLeak


class _OfRows(nn.Module):
    """Model of rows that sees images of one pixel."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.add_module(_INNER, model)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = getattr(self, _INNER)(images.flatten(1))
        return logits


def _as_images(obs: Observation, width: int) -> Observation:
    """Return the observation with rows as images of one pixel and as many channels as entries."""
    shape = tuple(obs.input_shape or (width,))
    if shape != (width,):
        raise ValueError(f"{WHO}: expected rows of {width} entries, as named, got inputs of shape {shape}")
    return replace(
        obs,
        model=_OfRows(obs.model),
        update={f"{_INNER}.{name}": entries for name, entries in obs.update.items()},
        sent=None if obs.sent is None else {f"{_INNER}.{name}": mask for name, mask in obs.sent.items()},
        input_shape=(width, 1, 1),
        mean=(0.0,) * width,
        std=(1.0,) * width,
        buffers=None,
    )


def _like(rows: Tensor, first: Tensor) -> Tensor:
    """Return rows (B, F) in the order of those of the best search."""
    pairs = match(rows[..., None, None], first[..., None, None])
    return torch.stack([rows[place if i is None else i] for place, i in enumerate(pairs)])


def _agreed(aligned: Tensor, columns: Columns) -> tuple[Tensor, Tensor]:
    """Return pooled rows (B, F), and the certainty of each column (B, columns): 1 where searches agree."""
    rows, sure = aligned.mean(dim=0), []
    for place in columns.numbers:
        values = aligned[..., place]
        rows[..., place] = values.median(dim=0).values
        sure.append(1 / (1 + values.std(dim=0, unbiased=False)))
    for _, places in columns.categories:
        shares = rows[..., list(places)].clamp_min(1e-12)
        entropy = -(shares * shares.log()).sum(dim=-1)
        most = torch.tensor(float(max(2, len(places)))).log()
        sure.append(1 - entropy / most)
    return columns.settled(rows), torch.stack(sure, dim=-1)
