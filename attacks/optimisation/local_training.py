"""A client's local steps, as far as the server knows them: number, learning rate and samples."""

from __future__ import annotations

from dataclasses import dataclass

from fl_app.types import Observation


@dataclass(frozen=True)
class LocalTraining:
    """Plain SGD over parts of the samples, one part a step."""

    lr: float
    parts: tuple[tuple[int, int], ...]
    """First sample of each step, and the one after its last."""

    @property
    def scale(self) -> float:
        """Divisor that turns the change of the weights into a mean gradient."""
        return -self.lr * len(self.parts)


def plan_local_training(obs: Observation, samples: int, *, who: str) -> tuple[LocalTraining, list[str]]:
    """Return the client's steps, and the assumptions made about them.

    The client does not reveal the samples of each step. With one batch per pass there is
    nothing to know. Otherwise we assume the same order in every pass; the search can adapt
    its order of images to that.
    """
    if obs.lr is None or obs.lr <= 0 or obs.local_steps is None or obs.local_steps < 1:
        raise ValueError(
            f"{who}: an update of several local steps needs lr > 0 and local_steps >= 1, "
            f"got lr={obs.lr} and local_steps={obs.local_steps}"
        )
    size = samples if obs.local_batch_size is None else min(samples, obs.local_batch_size)
    a_pass = [(start, min(start + size, samples)) for start in range(0, samples, size)]
    parts = tuple(a_pass[step % len(a_pass)] for step in range(obs.local_steps))
    notes = [f"{obs.local_steps} local steps unrolled, {size} samples each"]
    if obs.local_batch_size is None and obs.local_steps > 1:
        notes.append("the local batch size is not granted: every step is taken to have all samples")
    if len(a_pass) > 1 and obs.local_steps > len(a_pass):
        notes.append("every pass is taken to go through the samples in the same order")
    return LocalTraining(obs.lr, parts), notes
