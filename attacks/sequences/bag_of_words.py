"""Word pieces of a client's utterances, and their number (Dang et al. 2021, Section 2.5.2).

Each token of a transcript is a sample of the layer that projects to the vocabulary: RLG finds the distinct
ones, and the rank of the gradient is their number, repeats and the ends of utterances counted. The signs of
that layer's bias name them, too, as long as the model does not expect a token more often than it occurs.
"""

from __future__ import annotations

import dataclasses

from attacks.base import LabelAttack, LabelSet, StepListener, reading
from attacks.labels import bias_labels, rlg
from fl_app.types import Observation

PROJECTION = "output.weight"
WAYS = ("hyperplanes", "bias")


def bag_of_words(
    rank: int | None = None,
    way: str = "hyperplanes",
    fallback: bool = True,
    scale_rows: bool = True,
    longest: int | None = None,
) -> LabelAttack:
    """Recover the set of tokens by hyperplanes (RLG), or by the bias, which says nothing of their number.

    ``rank`` is the number of tokens behind the update; None takes ``obs.length`` or, where that is not
    granted, infers it. ``fallback``, ``scale_rows`` and ``longest`` are those of `rlg`.
    """
    if way not in WAYS:
        raise ValueError(f"bag_of_words: way must be one of {', '.join(WAYS)}, got {way!r}")

    def recover(told: int | None) -> LabelAttack:
        if way == "bias":
            return bias_labels(PROJECTION)
        return rlg(told, weight=PROJECTION, fallback=fallback, scale_rows=scale_rows, longest=longest)

    recover(rank)  # refuses a wrong rank now

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> LabelSet:
        # utterances are no samples: how many there are says nothing of the tokens
        seen = dataclasses.replace(obs, batch_size=None, local_batch_size=None)
        return recover(told_length(obs, rank))(seen, on_step=on_step)

    return reading("transcripts", attack)


def told_length(obs: Observation, rank: int | None) -> int | None:
    """Return the number of tokens that the attacker was told, as a setting or with the update."""
    return rank if rank is not None else obs.length
