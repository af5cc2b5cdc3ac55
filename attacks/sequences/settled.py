"""Stopping rule of a search for tokens: stop once none has changed for a while."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.optimisation.optimisers import Variables


class Settled:
    """Check of the labels (R, S, K) after each step: true once no token changed for ``patience`` steps."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.tokens: Tensor | None = None
        self.since: Tensor | None = None

    def __call__(self, variables: Variables) -> bool:
        tokens = variables["labels"].argmax(dim=2)
        if self.tokens is None or self.since is None:
            self.since = torch.zeros(len(tokens), dtype=torch.long, device=tokens.device)
        else:
            changed = (tokens != self.tokens).any(dim=1)
            self.since = (self.since + 1).masked_fill(changed, 0)
        self.tokens = tokens
        return bool((self.since >= self.patience).all())
