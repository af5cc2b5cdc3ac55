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


def bag_of_words(rank: int | None = None, way: str = "hyperplanes") -> LabelAttack:
    """Recover the set of tokens by hyperplanes (RLG), or by the bias, which says nothing of their number.

    ``rank`` is the number of tokens behind the update; None infers it.
    """
    if way not in WAYS:
        raise ValueError(f"bag_of_words: way must be one of {', '.join(WAYS)}, got {way!r}")
    recover = bias_labels(PROJECTION) if way == "bias" else rlg(rank, weight=PROJECTION)

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> LabelSet:
        # utterances are no samples: how many there are says nothing of the tokens
        return recover(dataclasses.replace(obs, batch_size=None, local_batch_size=None), on_step=on_step)

    return reading("transcripts", attack)
