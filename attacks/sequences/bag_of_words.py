"""Which pieces of words a client's utterances hold, and how many in all (Dang et al. 2021, Section 2.5.2).

Each token of a transcript is a sample of the layer that projects to the vocabulary: RLG finds the distinct
ones, and the rank of the gradient is their number, repeats and the ends of utterances counted.
"""

from __future__ import annotations

import dataclasses

from attacks.base import LabelAttack, LabelSet, StepListener
from attacks.labels import rlg
from fl_app.types import Observation

PROJECTION = "output.weight"


def bag_of_words(rank: int | None = None) -> LabelAttack:
    """Recover the set of tokens; ``rank`` is the number of tokens behind the update, None infers it."""
    recover = rlg(rank, weight=PROJECTION)

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> LabelSet:
        # utterances are no samples: how many there are says nothing of the tokens
        return recover(dataclasses.replace(obs, batch_size=None, local_batch_size=None), on_step=on_step)

    return attack
