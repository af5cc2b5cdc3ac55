"""Sizes of a bench: what of the criterion is measured, and with how much effort."""

from __future__ import annotations

from dataclasses import dataclass

from fl_app.bench.criterion import BenchModel, Criterion, View

SIZES = ("small", "full")
MINUTES = {"small": 10.0, "full": 600.0}
"""Default time budget."""


@dataclass(frozen=True)
class Effort:
    """What a bench measures."""

    size: str
    images: int
    steps: int
    restarts: int
    public_images: int
    rehearsals: int
    chunk: int
    """Images that are attacked together, and stored when they are done. Of a sum, as many clients."""
    views: tuple[View, ...]
    models: tuple[BenchModel, ...]
    images_of: tuple[str, ...]
    accuracy_rounds: int
    accuracy_seeds: tuple[int, ...]
    seed: int


def effort_of(size: str, criterion: Criterion, *, tuning: bool = False) -> Effort:
    """Return the effort of a size; ``tuning`` takes the seed on which defenses may be tuned."""
    leak, accuracy = criterion.leak, criterion.accuracy
    seed = leak.tuning_seed if tuning else leak.report_seed
    if size == "full":
        return Effort(
            size=size,
            images=leak.images,
            steps=leak.steps,
            restarts=leak.restarts,
            public_images=leak.public_images,
            rehearsals=leak.rehearsals,
            chunk=10,
            views=leak.views,
            models=leak.models,
            images_of=leak.images_of,
            accuracy_rounds=accuracy.rounds,
            accuracy_seeds=accuracy.seeds,
            seed=seed,
        )
    if size == "small":
        return Effort(
            size=size,
            images=10,
            steps=300,
            restarts=1,
            public_images=leak.public_images,
            rehearsals=leak.rehearsals,
            chunk=10,
            views=leak.views,
            models=leak.models[:1],
            images_of=leak.images_of[:1],
            accuracy_rounds=100,
            accuracy_seeds=accuracy.seeds[:2],
            seed=seed,
        )
    raise ValueError(f"bench: size must be one of {', '.join(SIZES)}, got {size!r}")
