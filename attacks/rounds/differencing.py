"""Attack on single clients behind the sums of secure aggregation: single them out, then invert each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from attacks.base import Reconstruction, StepListener
from attacks.optimisation.inverting_gradients import InvertingGradients
from attacks.optimisation.problem import as_problem
from attacks.rounds.cohorts import separate_means, single_out
from fl_app.types import Observation

WHO = "differencing"


@dataclass(frozen=True, kw_only=True)
class Differencing:
    """Recover images of every client whom the sums seen so far single out, by `inverting_gradients`.

    The sums' clients must be known (`Observation.cohort`); the more rounds with other cohorts, the more
    clients are singled out. ``batch_size`` is each client's number of samples; None: an equal share of those
    behind the sum.
    """

    steps: int = 1200
    batch_size: int | None = None
    seed: int = 0

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Reconstruction:
        """Attack the clients behind a sum and the sums before it; none singled out gives no images."""
        problem = as_problem(obs, who=WHO)
        found = separate_means([*obs.history, obs])
        clients = sorted(found.updates)
        notes = [
            f"{len(clients)} of {len(clients) + len(found.hidden)} clients singled out by "
            f"{len(obs.history) + 1} sums; constant updates leave {found.unexplained:.1%} unexplained"
        ]
        results = []
        for client in clients:
            own = single_out(obs, client)
            size = self.batch_size or max(1, (obs.batch_size or 1) // len(obs.cohort or (client,)))
            # the labels granted are those of all clients together: nobody says whose is which
            own = replace(own, batch_size=size, labels=None)
            attack = InvertingGradients(steps=self.steps, seed=self.seed)
            results.append(attack(own, on_step=on_step))
            notes.append(f"client {client}: noise amplified {found.amplified[client]:.1f} times")
        if not results:
            return Reconstruction(problem.target.new_zeros((0, *problem.input_shape)), notes=notes)
        labels = [result.labels for result in results if result.labels is not None]
        return Reconstruction(
            images=torch.cat([result.images for result in results]),
            labels=torch.cat(labels) if len(labels) == len(results) else None,
            notes=(*notes, *dict.fromkeys(note for result in results for note in result.notes)),
        )


differencing = Differencing
