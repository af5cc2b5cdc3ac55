"""Observed gradient of a decoder, and the distance of a guess from it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attacks.knowledge import gradient_unit, travelled
from fl_app.types import Observation

_UNMATCHED = "decoder.embedding.weight"
"""Its rows are the previous tokens' own: the search is to do without."""


@dataclass(frozen=True, eq=False)
class ObservedEntries:
    """A parameter's gradient, 0 where nothing was sent."""

    entries: Tensor
    sent: Tensor | None
    """Mask of the entries that were sent; None: all."""
    size: Tensor
    """Norm of the gradient."""

    def distance(self, guessed: Tensor) -> Tensor:
        """Return the distance of guesses (R, ...) from the sent entries, relative to their norm (R,)."""
        missed = guessed - self.entries
        if self.sent is not None:
            missed = missed * self.sent
        missed_by: Tensor = missed.flatten(1).norm(dim=1)
        return missed_by / self.size


def observed_decoder(obs: Observation, pieces: Tensor) -> dict[str, ObservedEntries]:
    """Return the gradient of decoder and projection by name, of the latter at the rows of ``pieces`` alone.

    A parameter of which nothing but zeros was sent is left out.
    """
    scale = 1.0 if obs.local_steps is None else -gradient_unit(obs)
    found = {}
    for name, update in obs.update.items():
        if not name.startswith(("decoder.", "output.")) or name == _UNMATCHED:
            continue
        entries, sent = update.detach() / scale, travelled(obs, name)
        if name.startswith("output."):
            entries, sent = entries[pieces], sent[pieces]
        entries = entries * sent
        if entries.any():
            found[name] = ObservedEntries(entries, None if sent.all() else sent, entries.norm())
    return found
