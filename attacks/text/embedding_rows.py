"""Tokens of a client's text, from the rows of the token embeddings' gradient.

Where the table of embeddings is trained and sent, only the rows of tokens that occur have a gradient. No
search is needed for that, but neither their order nor their number is told.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.base import LabelAttack, LabelSet, StepListener
from attacks.text.language_model import TOKENS
from fl_app.types import Observation

ROUNDING = 1e-4
"""Largest remainder of a row that lies in the span of others, relative to the row."""
_NOTHING = 1e-5
"""Singular values below this, relative to the largest, are rounding."""
_TRIES = 30


def embedding_rows(weight: str = TOKENS) -> LabelAttack:
    """Return the set of a text's tokens, those with the largest gradient first.

    An output layer that shares the table (tied weights) puts a gradient into every row: a mixture of
    what that layer saw at the masked places. Those are few, so that this part of the rows lies in a
    small space, and most rows have nothing else; tokens that occur have more than that.
    """

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> LabelSet:
        none = torch.zeros(0, dtype=torch.long)
        if weight not in obs.update:
            return LabelSet(labels=none, notes=[f"update[{weight!r}] was not sent: nothing is told"])
        rows = obs.update[weight].detach().cpu().double()
        space = _common_space(rows)
        if space is None:
            return LabelSet(labels=none, notes=[f"most rows of {weight} have a gradient of their own"])
        rest = _beyond(space, rows)
        sizes = rest.norm(dim=1)
        found = sizes > ROUNDING * rows.norm(dim=1)
        order = sizes.argsort(descending=True)
        tokens = order[found[order]]
        notes = [f"{len(tokens)} of {len(rows)} rows of {weight} tell tokens of the text, in no order"]
        if len(space):
            notes.append(f"tied weights: the rows' common part, of rank {len(space)}, was removed")
        return LabelSet(labels=tokens, notes=notes)

    return attack


def _common_space(rows: Tensor) -> Tensor | None:
    """Return a basis (r, E), r < E, of the smallest space found that holds most of the rows, if there is one.

    A few rows at random span it once they are enough, and as long as none of them is another's.
    """
    generator = torch.Generator().manual_seed(0)
    most = len(rows) // 2
    if int((~rows.any(dim=1)).sum()) > most:
        return rows[:0]
    number = 1
    while number < rows.shape[1]:
        for _ in range(_TRIES):
            space = _basis(rows[torch.randperm(len(rows), generator=generator)[:number]])
            inside = _beyond(space, rows).norm(dim=1) <= ROUNDING * rows.norm(dim=1)
            if int(inside.sum()) > most:
                return space
        number *= 2
    return None


def _basis(rows: Tensor) -> Tensor:
    _, singular, directions = torch.linalg.svd(rows, full_matrices=False)
    basis: Tensor = directions[singular > _NOTHING * singular[0]]
    return basis


def _beyond(space: Tensor, rows: Tensor) -> Tensor:
    return rows - rows @ space.T @ space
