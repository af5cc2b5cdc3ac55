"""Decomposition of an update into the gradients of candidates and of public records.

An update is a sum of its samples' gradients. Least squares tell the part of each candidate while all the
others, and what public records have in common with them, explain the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_ENTRIES = 1 << 17
"""Entries of the update that are explained, its largest, at most."""
_RIDGE = 1e-6


def entries_to_explain(update: Tensor) -> Tensor:
    """Return the indices of an update's entries that were sent, the largest of them if they are many."""
    sent = torch.nonzero(update).flatten()
    if len(sent) <= MOST_ENTRIES:
        return sent
    return update.abs().topk(MOST_ENTRIES).indices.sort().values


def parts_of(update: Tensor, candidates: Tensor, public: Tensor | None) -> Tensor:
    """Return each candidate's least-squares coefficient over its standard error (N,).

    ``candidates`` (N, P) and ``public`` (M, P) are gradients at the entries of ``update`` (P,).
    """
    rows = candidates if public is None else torch.cat([candidates, public])
    rows, update = rows.double(), update.double()
    if update.numel() <= len(rows):
        raise ValueError(
            f"decomposition: expected more entries than records, got {update.numel()} and {len(rows)}"
        )
    gram = rows @ rows.T
    gram += _RIDGE * gram.diagonal().mean() * torch.eye(len(rows), dtype=gram.dtype, device=gram.device)
    inverse = torch.linalg.inv(gram)
    weights = inverse @ (rows @ update)
    rest = update - weights @ rows
    variance = rest.square().sum() / (update.numel() - len(rows))
    errors = (variance * inverse.diagonal()).clamp_min(1e-30).sqrt()
    values: Tensor = weights / errors
    return values[: len(candidates)].cpu()
